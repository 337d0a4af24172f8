"""A strip of steps with a status each: the preview of a replay plan, or the replay timeline of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common.step_scale import StepScale, space_ticks

MAX_SEGMENTS = 400
MIN_TICK_DISTANCE = 3.0  # percent
# Status and height in percent, so that they differ without colour. Merged segments have the first of these statuses
# that one of them has.
SEGMENT_HEIGHTS = {
    "conflict": 100, "refused": 100, "unknown": 100, "hit": 100, "planned": 70, "miss": 46, "none": 14, "empty": 0
}  # fmt: skip
GAP = '<rect class="cell-gap" width="100%" y="60%" height="12%"/>'  # tells `refused` and `conflict` from `hit`


@dataclass(frozen=True, slots=True)
class StatusSegment:
    """Steps `first` to `last`. `status` is a key of `SEGMENT_HEIGHTS`."""

    first: int
    last: int
    status: str
    title: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class StatusStrip:
    """The segments have equal widths, or the positions of their steps on `scale`."""

    segments: tuple[StatusSegment, ...]
    scale: StepScale | None = None

    def boxes(self) -> list[tuple[float, float]]:
        """(x, width) of each segment in percent."""
        if self.scale:
            return [self.scale.box(segment.first, segment.last) for segment in self.segments]
        width = 100 / (len(self.segments) or 1)
        return [(at * width, width) for at in range(len(self.segments))]

    def ticks(self) -> list[tuple[float, int]]:
        """About ten labels: (x in percent, step); all if there are few."""
        count, boxes = len(self.segments), self.boxes()
        every = 1 if count <= 24 else -(-count // 10)
        ticks = [(round(boxes[at][0] + boxes[at][1] / 2, 2), self.segments[at].last) for at in range(0, count, every)]
        return space_ticks(ticks, MIN_TICK_DISTANCE) if self.scale else ticks


def build_status_strip(segments: Sequence[StatusSegment], scale: StepScale | None = None) -> StatusStrip:
    """Merges neighbours if there are more than `MAX_SEGMENTS`. The segments are in step order."""
    size = -(-len(segments) // MAX_SEGMENTS) or 1
    merged = tuple(merge_segments(segments[at : at + size]) for at in range(0, len(segments), size))
    return StatusStrip(merged, scale)


def merge_segments(segments: Sequence[StatusSegment]) -> StatusSegment:
    if len(segments) == 1:
        return segments[0]
    chosen = min(segments, key=lambda segment: list(SEGMENT_HEIGHTS).index(segment.status))
    same = sum(segment.status == chosen.status for segment in segments)
    first, last = segments[0].first, segments[-1].last
    title = _("steps {first} to {last}: {what} ({same} of {all} steps)")
    if same == 1:
        title = _("steps {first} to {last}: {what}")
    title = title.format(first=first, last=last, what=chosen.title, same=same, all=len(segments))
    return StatusSegment(first, last, chosen.status, title, chosen.link)


def render_status_strip(strip: StatusStrip, *, labels: bool = True) -> SafeString:
    """The content of an `<svg>`: 30 px of segments and a line of labels."""
    placed = zip(strip.segments, strip.boxes(), strict=True)
    marks = "".join(render_segment(segment, x, width) for segment, (x, width) in placed)
    if not labels:
        return mark_safe(marks)
    ticks = "".join(f'<text x="{x}%" y="43" text-anchor="middle">{step}</text>' for x, step in strip.ticks())
    return mark_safe(marks + ticks)


def render_segment(segment: StatusSegment, x: float, width: float) -> str:
    status, height = segment.status, SEGMENT_HEIGHTS[segment.status]
    box = f'x="{x:.3f}%" width="{width:.3f}%"'
    mark = (
        f"<title>{escape(segment.title)}</title>"
        f'<rect class="hit-area" {box} height="30"/><svg {box} height="30">'
        f'<rect class="cell-{status}" width="{94 if width > 0.5 else 100}%" y="{100 - height}%" height="{height}%"/>'
        f"{GAP if status in ('refused', 'conflict') else ''}</svg>"
    )
    return f'<a href="{escape(segment.link)}">{mark}</a>' if segment.link else f"<g>{mark}</g>"
