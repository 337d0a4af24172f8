"""A generation as it was written, dressed for reading: answers and hits marked, repetitions folded, landmarks named."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common import (
    ANSWER_PATTERN,
    MIN_STREAMED_CHARS,
    DeferredContent,
    find_answers,
    render_text,
    split_into_blocks,
)
from dashboard.pages.sample import outline as landmarks
from dashboard.pages.sample import repetition
from dashboard.pages.sample.outline import Landmark

MAX_MARKS = 1000


@dataclass(frozen=True, slots=True, order=True)
class MarkedSpan:
    """`text[start:end]` in a box of this kind; a landmark has no length."""

    start: int
    end: int
    kind: str
    name: str = ""

    def html(self, inside: str) -> str:
        if self.kind == "at":
            return f'<a class="at" id="{self.name}"></a>'
        return f'<mark class="{self.kind}">{render_text(inside)}</mark>'


@dataclass(frozen=True, slots=True)
class TextView:
    """`unmarked` says that there was more to mark than `MOST_MARKS`."""

    page: TextRenderer
    landmarks: list[Landmark]
    unmarked: bool

    @property
    def html(self) -> SafeString:
        return mark_safe("".join(self.page.whole()))

    @property
    def deferred(self) -> DeferredContent:
        return DeferredContent(self.page.whole, len(self.page.written))


def build_text_view(written: str, words: Iterable[str] = (), answers: bool = True, name: str = "r") -> TextView:
    """`name` begins the ids of the landmarks, so that two texts of a page do not share one. Of a text of more than
    `LONG` characters the answers at its end are marked."""
    marks = list(islice(find_marked_spans(written, words, answers), MAX_MARKS + 1))
    shown = marks[:MAX_MARKS]
    found = landmarks.find_landmarks(written, name) if answers else []
    anchors = [MarkedSpan(one.at, one.at, "at", one.name) for one in found]
    return TextView(TextRenderer(written, sorted([*shown, *anchors])), found, len(marks) > MAX_MARKS)


def find_marked_spans(written: str, words: Iterable[str], answers: bool) -> Iterator[MarkedSpan]:
    wanted = [re.escape(word) for word in words if word]
    if wanted:
        pattern = "|".join([f"(?P<hit>{'|'.join(wanted)})", *([ANSWER_PATTERN.pattern] if answers else [])])
        for found in re.compile(pattern, re.IGNORECASE).finditer(written):
            if found.end() > found.start():
                yield MarkedSpan(*found.span(), "hit" if found.group("hit") else "answer")
    elif answers:
        yield from (
            MarkedSpan(*found.span(), "answer")
            for found in find_answers(written, max(0, len(written) - MIN_STREAMED_CHARS))
        )


class TextRenderer:
    """One text and its spans, drawn from any place to any other."""

    def __init__(self, written: str, spans: list[MarkedSpan]) -> None:
        self.written, self.spans, self.show = written, spans, _("show")
        self.starts = [span.start for span in spans]

    def whole(self) -> Iterator[str]:
        at = 0
        for fold in repetition.find_repetitions(self.written):
            yield from self.blocks(at, fold.start)
            yield f'<details class="fold"><summary>× {fold.times:,} <span class="show">{self.show}</span></summary>'
            yield from self.blocks(fold.start, fold.end)
            yield "</details>"
            at = fold.end
        yield from self.blocks(at, len(self.written))

    def blocks(self, start: int, end: int) -> Iterator[str]:
        """Of a long text the browser lays out only the blocks in sight."""
        if len(self.written) <= MIN_STREAMED_CHARS:
            yield from self.drawn(start, end)
            return
        for block in split_into_blocks(self.written[start:end]):
            yield '<span class="block">'
            yield from self.drawn(start, start + len(block))
            yield "</span>"
            start += len(block)

    def drawn(self, start: int, end: int) -> Iterator[str]:
        at = start
        for span in islice(self.spans, bisect_left(self.starts, start), bisect_left(self.starts, end)):
            if span.start >= at:
                yield render_text(self.written[at : span.start])
            yield span.html(self.written[span.start : min(span.end, end)])
            at = max(at, min(span.end, end))
        yield render_text(self.written[at:end])
