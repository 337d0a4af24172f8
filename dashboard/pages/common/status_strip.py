"""A strip of steps with one word each: what a plan will do, or what a run did. Any number of steps in few cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

MAX_SEGMENTS = 400
# Word, and how high its cell is in per cent: the form tells them apart without colour. Neighbours that share a cell
# are drawn as the first of these words that one of them has.
SEGMENT_HEIGHTS = {"refused": 100, "hit": 100, "planned": 70, "miss": 46, "none": 14}
# What was refused is as high as what was replayed, so it has a break.
GAP = '<rect class="cell-gap" width="100%" y="60%" height="12%"/>'


@dataclass(frozen=True, slots=True)
class StatusSegment:
    """Steps `first` to `last`, mostly one. `word` is of `HEIGHTS`; `link` may be empty."""

    first: int
    last: int
    word: str
    title: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class StatusStrip:
    cells: tuple[StatusSegment, ...]

    @property
    def width(self) -> float:
        return 100 / (len(self.cells) or 1)

    def ticks(self) -> list[tuple[float, int]]:
        """About ten labels: (place in per cent, step)."""
        every = max(1, -(-len(self.cells) // 10))
        return [
            (round((at + 0.5) * self.width, 2), cell.last)
            for at, cell in enumerate(self.cells)
            if at % every == 0 or len(self.cells) <= 24
        ]


def build_status_strip(cells: Sequence[StatusSegment]) -> StatusStrip:
    """Cells in step order, neighbours put together where they are more than `MOST`."""
    size = -(-len(cells) // MAX_SEGMENTS) or 1
    return StatusStrip(tuple(merge_segments(cells[at : at + size]) for at in range(0, len(cells), size)))


def merge_segments(cells: Sequence[StatusSegment]) -> StatusSegment:
    if len(cells) == 1:
        return cells[0]
    chief = min(cells, key=lambda cell: list(SEGMENT_HEIGHTS).index(cell.word))
    same = sum(cell.word == chief.word for cell in cells)
    first, last = cells[0].first, cells[-1].last
    said = _("steps {first} to {last}: {what} ({same} of {all} steps)")
    if same == 1:
        said = _("steps {first} to {last}: {what}")
    title = said.format(first=first, last=last, what=chief.title, same=same, all=len(cells))
    return StatusSegment(first, last, chief.word, title, chief.link)


def render_status_strip(strip: StatusStrip) -> SafeString:
    """The insides of an `<svg>` of 30 px and a line of labels."""
    marks = "".join(render_segment(cell, at * strip.width, strip.width) for at, cell in enumerate(strip.cells))
    labels = "".join(f'<text x="{x}%" y="43" text-anchor="middle">{step}</text>' for x, step in strip.ticks())
    return mark_safe(marks + labels)


def render_segment(cell: StatusSegment, x: float, width: float) -> str:
    height = SEGMENT_HEIGHTS[cell.word]
    place = f'x="{x:.3f}%" width="{width:.3f}%"'
    mark = (
        f"<title>{escape(cell.title)}</title>"
        f'<rect class="hit-area" {place} height="30"/><svg {place} height="30">'
        f'<rect class="cell-{cell.word}" width="{94 if width > 0.5 else 100}%" y="{100 - height}%" height="{height}%"/>'
        f"{GAP if cell.word == 'refused' else ''}</svg>"
    )
    return f'<a href="{escape(cell.link)}">{mark}</a>' if cell.link else f"<g>{mark}</g>"
