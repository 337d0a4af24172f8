"""The timeline of a run's overview: its events, on the axis of its charts. A mark links to its step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.common import StepScale, StepUrlState
from rollouts.models import Run
from rollouts.runs import EVENT_KINDS, RunEvent, RunTimeline, load_run_timeline

TIMELINE_SLOTS = 100
CHART_TICK_SLOTS = 300  # at the bottom of each chart
MAX_TIMELINE_EVENTS = 300  # in the list
EVENT_SIGNS = {"failed": "✕", "restarted": "↻", "flagged": "⚑", "pinned": "◆", "replayed": "▬"}
EVENT_NAMES = {
    "failed": N_("failed"),
    "restarted": N_("restarted"),
    "flagged": N_("flagged"),
    "pinned": N_("pinned"),
    "replayed": N_("replayed"),
}

STEP_TEXTS = {
    "failed": N_("step {step}: training failed"),
    "restarted": N_("step {step}: attempt {number} started"),
    "pinned": N_("step {step}: pinned"),
    "replayed": N_("step {step}: replayed"),
}
SPAN_TEXTS = {
    "restarted": N_("steps {first} to {last}: {count} attempts started"),
    "flagged": N_("steps {first} to {last}: {count} flags"),
    "pinned": N_("steps {first} to {last}: {count} pinned"),
    "replayed": N_("steps {first} to {last}: {count} replayed"),
}


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """The events of one slot, at `x` percent; `signs` are (kind, sign)."""

    x: float
    signs: Sequence[tuple[str, str]]
    title: str
    link: str


def build_timeline_context(run: Run, scale: StepScale | None, *, with_replays: bool = True) -> dict[str, Any]:
    """The context of `run/timeline.html`; `timeline` is None if there are no events. On a page that draws the replayed
    steps in a strip of their own, only the list of events has them, next to other events."""
    timeline = load_run_timeline(run)
    if timeline and not with_replays and all(event.kind == "replayed" for event in timeline.events):
        timeline = None
    return {"timeline": build_timeline(run, timeline, scale, with_replays=with_replays) if timeline else None}


def build_timeline(
    run: Run, timeline: RunTimeline, scale: StepScale | None = None, *, with_replays: bool = True
) -> dict[str, Any]:
    scale = scale or StepScale(timeline.first_step, timeline.last_step)
    kinds = [kind for kind in EVENT_KINDS if with_replays or kind != "replayed"]
    drawn = replace(timeline, events=[event for event in timeline.events if event.kind in kinds])
    edges = (timeline.first_step, timeline.last_step)
    return {
        "marks": build_timeline_marks(run, drawn, scale),
        "edges": [(scale.center(step), step) for step in dict.fromkeys(edges)],
        "counts": [(kind, EVENT_SIGNS[kind], _(EVENT_NAMES[kind]), count_events(drawn.events, kind)) for kind in kinds],
        "ticks": build_chart_ticks(drawn),
        "rows": [
            (event, EVENT_SIGNS[event.kind], describe_events([event]), build_event_link(run, event))
            for event in timeline.events[::-1][:MAX_TIMELINE_EVENTS]
        ],
        "more": len(timeline.events) > MAX_TIMELINE_EVENTS,
    }


def count_events(events: Sequence[RunEvent], kind: str) -> int:
    """Returns the number of flagged samples, or of events of another kind."""
    return sum(event.count if kind == "flagged" else 1 for event in events if event.kind == kind)


def build_timeline_marks(run: Run, timeline: RunTimeline, scale: StepScale) -> list[TimelineMark]:
    """The link of a mark opens its most important event."""
    slots: dict[int, dict[str, list[RunEvent]]] = {}
    for event in timeline.events:
        slot = slots.setdefault(find_slot(timeline, event, TIMELINE_SLOTS), {})
        slot.setdefault(event.kind, []).append(event)
    marks = []
    for by_kind in slots.values():
        kinds = [kind for kind in EVENT_KINDS if kind in by_kind]
        title = " · ".join(describe_events(by_kind[kind]) for kind in kinds)
        signs = [(kind, EVENT_SIGNS[kind]) for kind in kinds]
        link = build_event_link(run, by_kind[kinds[0]][0])
        steps = [event.step for events in by_kind.values() for event in events]
        left, width = scale.box(min(steps), max(steps))
        marks.append(TimelineMark(round(left + width / 2, 3), signs, title, link))
    return marks


def build_chart_ticks(timeline: RunTimeline) -> list[tuple[str, int]]:
    """[(kind, step)] in step order, at most one of each kind in each of `CHART_TICK_SLOTS` slots."""
    steps: dict[tuple[str, int], int] = {}
    for event in timeline.events:
        steps.setdefault((event.kind, find_slot(timeline, event, CHART_TICK_SLOTS)), event.step)
    return [(kind, step) for (kind, _slot), step in steps.items()]


def find_slot(timeline: RunTimeline, event: RunEvent, slots: int) -> int:
    return (event.step - timeline.first_step) * (slots - 1) // max(1, timeline.last_step - timeline.first_step)


def build_event_link(run: Run, event: RunEvent) -> str:
    """Flags link to the flagged samples, other events to the nearest step with samples."""
    split = "" if event.split == "train" else event.split
    if event.kind == "flagged":
        return reverse("step", args=[run.uid, event.step]) + str(StepUrlState(split=split, q="is:flagged").link())
    return reverse("nearest", args=[run.uid, event.step]) + str(StepUrlState(split=split).link())


def describe_events(events: Sequence[RunEvent]) -> str:
    """Describes events of one kind, at one step or at neighbouring ones."""
    kind, first, last, number = events[0].kind, events[0].step, events[-1].step, events[-1].count
    count = sum(event.count for event in events) if kind == "flagged" else len(events)
    if first != last:
        text = _(SPAN_TEXTS[kind])
    elif kind == "flagged":
        text = ngettext("step {step}: {count} flag", "step {step}: {count} flags", count)
    else:
        text = _(STEP_TEXTS[kind])
    return text.format(step=first, first=first, last=last, count=count, number=number)
