"""A text as HTML: answers and query matches marked, repetitions collapsed, landmarks as anchors."""

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
from dashboard.pages.sample import outline, repetition

MAX_MARKS = 1000


@dataclass(frozen=True, slots=True, order=True)
class MarkedSpan:
    """`text[start:end]` is marked as `kind`: hit, answer, or at for a landmark, which has no length."""

    start: int
    end: int
    kind: str
    name: str = ""

    def render(self, text: str) -> str:
        if self.kind == "at":
            return f'<a class="at" id="{self.name}"></a>'
        return f'<mark class="{self.kind}">{render_text(text)}</mark>'


@dataclass(frozen=True, slots=True)
class TextView:
    """`unmarked`: there are more than `MAX_MARKS` marks."""

    renderer: TextRenderer
    landmarks: list[outline.Landmark]
    unmarked: bool

    @property
    def html(self) -> SafeString:
        return mark_safe("".join(self.renderer.render()))

    @property
    def deferred(self) -> DeferredContent:
        return DeferredContent(self.renderer.render, len(self.renderer.text))


def build_text_view(text: str, words: Iterable[str] = (), answers: bool = True, name: str = "r") -> TextView:
    """`name` is the prefix of the landmarks' ids, unique on the page."""
    marks = list(islice(find_marked_spans(text, words, answers), MAX_MARKS + 1))
    landmarks = outline.find_landmarks(text, name) if answers else []
    anchors = [MarkedSpan(landmark.at, landmark.at, "at", landmark.name) for landmark in landmarks]
    return TextView(TextRenderer(text, sorted([*marks[:MAX_MARKS], *anchors])), landmarks, len(marks) > MAX_MARKS)


def find_marked_spans(text: str, words: Iterable[str], answers: bool) -> Iterator[MarkedSpan]:
    """Without words, a text longer than `MIN_STREAMED_CHARS` is searched for answers only at its end."""
    escaped = [re.escape(word) for word in words if word]
    if escaped:
        pattern = "|".join([f"(?P<hit>{'|'.join(escaped)})", *([ANSWER_PATTERN.pattern] if answers else [])])
        for match in re.compile(pattern, re.IGNORECASE).finditer(text):
            if match.end() > match.start():
                yield MarkedSpan(*match.span(), "hit" if match.group("hit") else "answer")
    elif answers:
        for match in find_answers(text, max(0, len(text) - MIN_STREAMED_CHARS)):
            yield MarkedSpan(*match.span(), "answer")


class TextRenderer:
    def __init__(self, text: str, spans: list[MarkedSpan]) -> None:
        self.text, self.spans, self.show_label = text, spans, _("show")
        self.starts = [span.start for span in spans]

    def render(self) -> Iterator[str]:
        at = 0
        for hidden in repetition.find_repetitions(self.text):
            yield from self.render_blocks(at, hidden.start)
            label = f'× {hidden.times:,} <span class="show">{self.show_label}</span>'
            yield f'<details class="fold"><summary>{label}</summary>'
            yield from self.render_blocks(hidden.start, hidden.end)
            yield "</details>"
            at = hidden.end
        yield from self.render_blocks(at, len(self.text))

    def render_blocks(self, start: int, end: int) -> Iterator[str]:
        """A long text is split into blocks, since browsers lay out only the visible ones."""
        if len(self.text) <= MIN_STREAMED_CHARS:
            yield from self.render_range(start, end)
            return
        for block in split_into_blocks(self.text[start:end]):
            yield '<span class="block">'
            yield from self.render_range(start, start + len(block))
            yield "</span>"
            start += len(block)

    def render_range(self, start: int, end: int) -> Iterator[str]:
        at = start
        for span in islice(self.spans, bisect_left(self.starts, start), bisect_left(self.starts, end)):
            if span.start >= at:
                yield render_text(self.text[at : span.start])
            yield span.render(self.text[span.start : min(span.end, end)])
            at = max(at, min(span.end, end))
        yield render_text(self.text[at:end])
