"""The row of events in a run's overview, on the axis of its charts. A mark links to its step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.common import StepScale, StepUrlState
from rollouts.models import Run
from rollouts.runs import EVENT_KINDS, RunEvent, RunEvents, load_run_events

EVENT_SLOTS = 100
CHART_TICK_SLOTS = 300  # at the bottom of each chart
MAX_LISTED_EVENTS = 300  # in the list
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
class EventMark:
    """The events of one slot, at `x` percent; `signs` are (kind, sign)."""

    x: float
    signs: Sequence[tuple[str, str]]
    title: str
    link: str


def build_events_context(run: Run, scale: StepScale | None, *, with_replays: bool = True) -> dict[str, Any]:
    """The context of `run/events.html`; `event_row` is None if there are no events. On a page that draws the replayed
    steps in a strip of their own, only the list of events has them, next to other events."""
    run_events = load_run_events(run)
    if run_events and not with_replays and all(event.kind == "replayed" for event in run_events.events):
        run_events = None
    return {"event_row": build_event_row(run, run_events, scale, with_replays=with_replays) if run_events else None}


def build_event_row(
    run: Run, run_events: RunEvents, scale: StepScale | None = None, *, with_replays: bool = True
) -> dict[str, Any]:
    scale = scale or StepScale(run_events.first_step, run_events.last_step)
    kinds = [kind for kind in EVENT_KINDS if with_replays or kind != "replayed"]
    drawn = replace(run_events, events=[event for event in run_events.events if event.kind in kinds])
    edges = (run_events.first_step, run_events.last_step)
    return {
        "marks": build_event_marks(run, drawn, scale),
        "edges": [(scale.center(step), step) for step in dict.fromkeys(edges)],
        "counts": [(kind, EVENT_SIGNS[kind], _(EVENT_NAMES[kind]), count_events(drawn.events, kind)) for kind in kinds],
        "ticks": build_chart_ticks(drawn),
        "rows": [
            (event, EVENT_SIGNS[event.kind], describe_events([event]), build_event_link(run, event))
            for event in run_events.events[::-1][:MAX_LISTED_EVENTS]
        ],
        "more": len(run_events.events) > MAX_LISTED_EVENTS,
    }


def count_events(events: Sequence[RunEvent], kind: str) -> int:
    """Returns the number of flagged samples, or of events of another kind."""
    return sum(event.count if kind == "flagged" else 1 for event in events if event.kind == kind)


def build_event_marks(run: Run, run_events: RunEvents, scale: StepScale) -> list[EventMark]:
    """The link of a mark opens its most important event."""
    slots: dict[int, dict[str, list[RunEvent]]] = {}
    for event in run_events.events:
        slot = slots.setdefault(find_slot(run_events, event, EVENT_SLOTS), {})
        slot.setdefault(event.kind, []).append(event)
    marks = []
    for by_kind in slots.values():
        kinds = [kind for kind in EVENT_KINDS if kind in by_kind]
        title = " · ".join(describe_events(by_kind[kind]) for kind in kinds)
        signs = [(kind, EVENT_SIGNS[kind]) for kind in kinds]
        link = build_event_link(run, by_kind[kinds[0]][0])
        steps = [event.step for events in by_kind.values() for event in events]
        left, width = scale.box(min(steps), max(steps))
        marks.append(EventMark(round(left + width / 2, 3), signs, title, link))
    return marks


def build_chart_ticks(run_events: RunEvents) -> list[tuple[str, int]]:
    """[(kind, step)] in step order, at most one of each kind in each of `CHART_TICK_SLOTS` slots."""
    steps: dict[tuple[str, int], int] = {}
    for event in run_events.events:
        steps.setdefault((event.kind, find_slot(run_events, event, CHART_TICK_SLOTS)), event.step)
    return [(kind, step) for (kind, _slot), step in steps.items()]


def find_slot(run_events: RunEvents, event: RunEvent, slots: int) -> int:
    return (event.step - run_events.first_step) * (slots - 1) // max(1, run_events.last_step - run_events.first_step)


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
