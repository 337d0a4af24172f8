"""One row on a run's overview: where on the axis of its charts something happened. A mark opens its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.common import StepUrlState
from rollouts.models import Run
from rollouts.runs import EVENT_KINDS, RunEvent, RunTimeline, load_run_timeline

TIMELINE_SLOTS = 100  # of the row
CHART_TICK_SLOTS = 300  # places at the foot of a chart
MAX_TIMELINE_EVENTS = 300  # lines of the list
# How each kind is drawn, and what it is called where all of them are counted.
EVENT_SIGNS = {"failed": "✕", "restarted": "↻", "flagged": "⚑", "pinned": "◆", "replayed": "▬"}
EVENT_NAMES = {
    "failed": N_("failed"),
    "restarted": N_("restarted"),
    "flagged": N_("flagged"),
    "pinned": N_("pinned"),
    "replayed": N_("replayed"),
}


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """What happened at steps that share a place, `x` in per cent; `signs` are (kind, sign)."""

    x: float
    signs: list[tuple[str, str]]
    title: str
    link: str


def build_timeline_context(run: Run) -> dict[str, Any]:
    """The context of `run/timeline.html`; `events` only where something happened."""
    told = load_run_timeline(run)
    return {"events": build_timeline(run, told) if told else None}


def build_timeline(run: Run, told: RunTimeline) -> dict[str, Any]:
    return {
        "marks": build_timeline_marks(run, told),
        "low": told.first_step,
        "high": told.last_step,
        "counts": [
            (kind, EVENT_SIGNS[kind], _(EVENT_NAMES[kind]), count_events(told.events, kind)) for kind in EVENT_KINDS
        ],
        "ticks": build_chart_ticks(told),
        "lines": [
            (one, EVENT_SIGNS[one.kind], describe_events([one]), build_event_link(run, one))
            for one in told.events[::-1][:MAX_TIMELINE_EVENTS]
        ],
        "more": len(told.events) > MAX_TIMELINE_EVENTS,
    }


def count_events(found: Sequence[RunEvent], kind: str) -> int:
    return sum(one.kind == kind for one in found)


def build_timeline_marks(run: Run, told: RunTimeline) -> list[TimelineMark]:
    slots: dict[int, list[RunEvent]] = {}
    for one in told.events:
        slots.setdefault(find_slot(told, one, TIMELINE_SLOTS), []).append(one)
    return [build_timeline_mark(run, at, found) for at, found in slots.items()]


def build_chart_ticks(told: RunTimeline) -> list[tuple[str, int]]:
    """[(kind, step)] in step order, at most one of a kind in each of `TICKS` places."""
    first: dict[tuple[str, int], int] = {}
    for one in told.events:
        first.setdefault((one.kind, find_slot(told, one, CHART_TICK_SLOTS)), one.step)
    return [(kind, step) for (kind, _place), step in first.items()]


def find_slot(told: RunTimeline, one: RunEvent, slots: int) -> int:
    """Which of so many places on the axis it has."""
    return (one.step - told.first_step) * (slots - 1) // max(1, told.last_step - told.first_step)


def build_timeline_mark(run: Run, at: int, found: Sequence[RunEvent]) -> TimelineMark:
    """Opens the chief thing among those that share the place."""
    kinds = [kind for kind in EVENT_KINDS if count_events(found, kind)]
    title = " · ".join(describe_events([one for one in found if one.kind == kind]) for kind in kinds)
    chief = next(one for one in found if one.kind == kinds[0])
    return TimelineMark(
        round(100 * (at + 0.5) / TIMELINE_SLOTS, 2),
        [(kind, EVENT_SIGNS[kind]) for kind in kinds],
        title,
        build_event_link(run, chief),
    )


def build_event_link(run: Run, one: RunEvent) -> str:
    """Flags open what is flagged; anything else the nearest step with samples, since not every step has some."""
    split = "" if one.split == "train" else one.split
    if one.kind == "flagged":
        return reverse("step", args=[run.uid, one.step]) + str(StepUrlState(split=split, q="is:flagged").link())
    return reverse("nearest", args=[run.uid, one.step]) + str(StepUrlState(split=split).link())


def describe_events(found: Sequence[RunEvent]) -> str:
    """What happened, of events of one kind at one step, in whichever splits, or at neighbouring ones."""
    first, last, count = found[0].step, found[-1].step, sum_events(found)
    if first != last:
        return get_plural_title(found[0].kind).format(first=first, last=last, count=count)
    match found[0].kind:
        case "failed":
            return _("step {step}: training failed").format(step=first)
        case "restarted":
            return _("step {step}: attempt {number} started").format(step=first, number=found[-1].count)
        case "flagged":
            marked = ngettext("step {step}: {count} flag", "step {step}: {count} flags", count)
            return marked.format(step=first, count=count)
        case "pinned":
            return _("step {step}: pinned").format(step=first)
        case _other:
            return _("step {step}: replayed").format(step=first)


def get_plural_title(kind: str) -> str:
    return {
        "restarted": _("steps {first} to {last}: {count} attempts started"),
        "flagged": _("steps {first} to {last}: {count} flags"),
        "pinned": _("steps {first} to {last}: {count} pinned"),
        "replayed": _("steps {first} to {last}: {count} replayed"),
    }[kind]


def sum_events(found: Sequence[RunEvent]) -> int:
    return sum(one.count for one in found) if found[0].kind == "flagged" else len(found)
