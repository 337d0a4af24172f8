"""The drawing above a plan: what it will do, flags, conflicts and restarts, and what a run did, over one step axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from dashboard.pages.common import StatusSegment, StatusStrip, build_status_strip, render_status_strip

EVENTS_Y, RUN_Y, RUN_HEIGHT = 60, 66, 30
MAX_EVENT_LABELS = 40  # more would overlap


@dataclass(frozen=True, slots=True)
class PlanDrawing:
    """`plan` and `run` have one segment for the same steps, so that they have one scale. `run` is None without a run.

    `events`: {index of a segment: text}.
    """

    plan: StatusStrip
    run: StatusStrip | None
    events: Mapping[int, str] = field(default_factory=dict)

    @property
    def height(self) -> int:
        return EVENTS_Y + 8 + (RUN_HEIGHT if self.run else 0)

    def render(self) -> SafeString:
        """The content of the `<svg>`: the plan, a line of step numbers, a line of events, the run."""
        parts: list[str] = [render_status_strip(self.plan)]
        boxes = self.plan.boxes()
        for index, text in self.events.items():
            x = boxes[index][0] + boxes[index][1] / 2
            anchor = "start" if x < 4 else "end" if x > 96 else "middle"
            parts.append(
                f'<text class="event" x="{x:.2f}%" y="{EVENTS_Y}" text-anchor="{anchor}">{escape(text)}</text>'
            )
        if self.run:
            bars = render_status_strip(StatusStrip(self.run.segments), labels=False)
            parts.append(f'<svg class="run-row" y="{RUN_Y}" width="100%" height="{RUN_HEIGHT}">{bars}</svg>')
        return mark_safe("".join(parts))


def build_plan_drawing(
    segments: Sequence[StatusSegment],
    run_segments: Mapping[int, StatusSegment],
    flags: Mapping[int, int],
    restarts: Sequence[int],
) -> PlanDrawing:
    """`segments`: one for each step; the others by step. Both rows merge the same steps if there are too many."""
    plan = build_status_strip(segments)
    run = None
    if run_segments:
        row = [run_segments.get(segment.first) or build_empty_segment(segment.first) for segment in segments]
        run = build_status_strip(row)
    events = {
        index: text
        for index, segment in enumerate(plan.segments)
        if (text := " ".join(describe_events(segment, flags, restarts)))
    }
    return PlanDrawing(plan, run, dict(list(events.items())[:MAX_EVENT_LABELS]))


def build_empty_segment(step: int) -> StatusSegment:
    return StatusSegment(step, step, "empty", _("step {step}: not reached").format(step=step))


def describe_events(segment: StatusSegment, flags: Mapping[int, int], restarts: Sequence[int]) -> Iterator[str]:
    if any(segment.first <= step <= segment.last for step in restarts):
        yield "↻"
    if count := sum(flags.get(step, 0) for step in range(segment.first, segment.last + 1)):
        yield f"⚑{count}"
    if segment.status == "conflict":
        yield "⚠"
