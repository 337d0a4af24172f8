"""A generation as it was written, dressed for reading: answers and hits marked, repetitions folded, landmarks named."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common import formatting
from dashboard.pages.common.streaming import LONG, Late
from dashboard.pages.sample import outline as landmarks
from dashboard.pages.sample import repetition
from dashboard.pages.sample.outline import Landmark

MOST_MARKS = 1000


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """`text[start:end]` in a box of this kind; a landmark has no length."""

    start: int
    end: int
    kind: str
    name: str = ""

    def html(self, inside: str) -> str:
        if self.kind == "at":
            return f'<a class="at" id="{self.name}"></a>'
        return f'<mark class="{self.kind}">{formatting.plain(inside)}</mark>'


@dataclass(frozen=True, slots=True)
class Prose:
    """`unmarked` says that there was more to mark than `MOST_MARKS`."""

    page: Page
    landmarks: list[Landmark]
    unmarked: bool

    @property
    def html(self) -> SafeString:
        return mark_safe("".join(self.page.whole()))

    @property
    def late(self) -> Late:
        return Late(self.page.whole, len(self.page.written))


def dressed(written: str, words: Iterable[str] = (), answers: bool = True, name: str = "r") -> Prose:
    """`name` begins the ids of the landmarks, so that two texts of a page do not share one. Of a text of more than
    `LONG` characters the answers at its end are marked."""
    marks = list(islice(marks_of(written, words, answers), MOST_MARKS + 1))
    shown = marks[:MOST_MARKS]
    found = landmarks.of(written, name) if answers else []
    anchors = [Span(one.at, one.at, "at", one.name) for one in found]
    return Prose(Page(written, sorted([*shown, *anchors])), found, len(marks) > MOST_MARKS)


def marks_of(written: str, words: Iterable[str], answers: bool) -> Iterator[Span]:
    wanted = [re.escape(word) for word in words if word]
    if wanted:
        pattern = "|".join([f"(?P<hit>{'|'.join(wanted)})", *([formatting.ANSWER.pattern] if answers else [])])
        for found in re.compile(pattern, re.IGNORECASE).finditer(written):
            if found.end() > found.start():
                yield Span(*found.span(), "hit" if found.group("hit") else "answer")
    elif answers:
        yield from (Span(*found.span(), "answer") for found in formatting.answers(written, max(0, len(written) - LONG)))


class Page:
    """One text and its spans, drawn from any place to any other."""

    def __init__(self, written: str, spans: list[Span]) -> None:
        self.written, self.spans, self.show = written, spans, _("show")
        self.starts = [span.start for span in spans]

    def whole(self) -> Iterator[str]:
        at = 0
        for fold in repetition.folds(self.written):
            yield from self.blocks(at, fold.start)
            yield f'<details class="fold"><summary>× {fold.times:,} <span class="show">{self.show}</span></summary>'
            yield from self.blocks(fold.start, fold.end)
            yield "</details>"
            at = fold.end
        yield from self.blocks(at, len(self.written))

    def blocks(self, start: int, end: int) -> Iterator[str]:
        """Of a long text the browser lays out only the blocks in sight."""
        if len(self.written) <= LONG:
            yield from self.drawn(start, end)
            return
        for block in formatting.blocks(self.written[start:end]):
            yield '<span class="block">'
            yield from self.drawn(start, start + len(block))
            yield "</span>"
            start += len(block)

    def drawn(self, start: int, end: int) -> Iterator[str]:
        at = start
        for span in islice(self.spans, bisect_left(self.starts, start), bisect_left(self.starts, end)):
            if span.start >= at:
                yield formatting.plain(self.written[at : span.start])
            yield span.html(self.written[span.start : min(span.end, end)])
            at = max(at, min(span.end, end))
        yield formatting.plain(self.written[at:end])
