"""A text as HTML: answers and query matches marked, repetitions collapsed, landmarks as anchors."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages import common
from dashboard.pages.sample import outline, repetition
from rollouts.query import find_hits

MAX_MARKS = 1000


@dataclass(frozen=True, slots=True, order=True)
class MarkedSpan:
    """`text[start:end]` is marked as `kind`: hit, answer, or without a length anchor for a landmark and label, which
    names the text behind it."""

    start: int
    end: int
    kind: str
    name: str = ""

    def render(self, text: str) -> str:
        if self.kind == "anchor":
            return f'<a class="at" id="{self.name}"></a>'
        if self.kind == "label":  # drawn by the style sheet, so that it is not copied or found with the text
            return f'<span class="answer-label" data-label="{escape(self.name)}"></span>'
        return f'<mark class="{self.kind}">{common.render_text(text)}</mark>'


@dataclass(frozen=True, slots=True)
class TextView:
    """`marks_omitted`: there are more than `MAX_MARKS` marks."""

    renderer: TextRenderer
    landmarks: list[outline.Landmark]
    marks_omitted: bool

    @property
    def hits(self) -> int:
        return sum(span.kind == "hit" for span in self.renderer.spans)

    @property
    def html(self) -> SafeString:
        return mark_safe("".join(self.renderer.render()))

    @property
    def deferred(self) -> common.DeferredContent:
        return common.DeferredContent(self.renderer.render, len(self.renderer.text))


def build_text_view(
    text: str,
    words: Iterable[str] = (),
    *,
    mark_answers: bool = True,
    id_prefix: str = "r",
    labels: Mapping[int, str] | None = None,
) -> TextView:
    """`id_prefix` is the prefix of the landmarks' ids, unique on the page. `labels` name the text behind a position."""
    marks = list(islice(find_marked_spans(text, words, mark_answers), MAX_MARKS + 1))
    landmarks = outline.find_landmarks(text, id_prefix) if mark_answers else []
    anchors = [MarkedSpan(landmark.at, landmark.at, "anchor", landmark.name) for landmark in landmarks]
    named = [MarkedSpan(at, at, "label", name) for at, name in (labels or {}).items()]
    spans = sorted([*marks[:MAX_MARKS], *anchors, *named])
    return TextView(TextRenderer(text, spans), landmarks, len(marks) > MAX_MARKS)


def find_marked_spans(text: str, words: Iterable[str], mark_answers: bool) -> Iterator[MarkedSpan]:
    """Without words, a text longer than `MIN_STREAMED_CHARS` is searched for answers only at its end."""
    if isinstance(words, common.HighlightedTerms):
        yield from find_exact_spans(text, words.pattern, mark_answers)
        return
    escaped = [re.escape(word) for word in words if word]
    if escaped:
        pattern = "|".join(
            [f"(?P<hit>{'|'.join(escaped)})", *([common.ANSWER_PATTERN.pattern] if mark_answers else [])]
        )
        for match in re.compile(pattern, re.IGNORECASE).finditer(text):
            if match.end() > match.start():
                yield MarkedSpan(*match.span(), "hit" if match.group("hit") else "answer")
    elif mark_answers:
        for match in common.find_answers(text, max(0, len(text) - common.MIN_STREAMED_CHARS)):
            yield MarkedSpan(*match.span(), "answer")


def find_exact_spans(text: str, pattern: str, mark_answers: bool) -> Iterator[MarkedSpan]:
    """The hits of a query, and the answers that do not overlap them, in order."""
    spans = [MarkedSpan(start, end, "hit") for start, end in find_hits(text, pattern)]
    starts = [span.start for span in spans]
    if mark_answers:
        for match in common.find_answers(text, max(0, len(text) - common.MIN_STREAMED_CHARS)):
            at = bisect_left(starts, match.end())
            if not at or spans[at - 1].end <= match.start():
                spans.append(MarkedSpan(*match.span(), "answer"))
    yield from sorted(spans)


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
        if not common.needs_blocks(self.text):
            yield from self.render_range(start, end)
            return
        for block in common.split_into_blocks(self.text[start:end]):
            yield '<span class="block">'
            yield from self.render_range(start, start + len(block))
            yield "</span>"
            start += len(block)

    def render_range(self, start: int, end: int) -> Iterator[str]:
        at, first = start, bisect_left(self.starts, start)
        crossing = next((span for span in reversed(self.spans[:first]) if span.end > span.start), None)
        if crossing and crossing.end > start:  # marks do not overlap, so at most one started in an earlier block
            at = min(crossing.end, end)
            yield crossing.render(self.text[start:at])
        for span in islice(self.spans, first, bisect_left(self.starts, end)):
            if span.start >= at:
                yield common.render_text(self.text[at : span.start])
            yield span.render(self.text[span.start : min(span.end, end)])
            at = max(at, min(span.end, end))
        yield common.render_text(self.text[at:end])
