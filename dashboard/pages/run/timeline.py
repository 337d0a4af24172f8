"""One row on a run's overview: where on the axis of its charts something happened. A mark opens its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_
from django.utils.translation import ngettext

from dashboard.pages.common.url_state import Ask
from rollouts.models import Run
from rollouts.runs import timeline
from rollouts.runs.timeline import Event, Told

SLOTS = 100  # of the row
TICKS = 300  # places at the foot of a chart
MOST = 300  # lines of the list
# How each kind is drawn, and what it is called where all of them are counted.
SIGNS = {"failed": "✕", "restarted": "↻", "flagged": "⚑", "pinned": "◆", "replayed": "▬"}
CALLED = {
    "failed": N_("failed"),
    "restarted": N_("restarted"),
    "flagged": N_("flagged"),
    "pinned": N_("pinned"),
    "replayed": N_("replayed"),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """What happened at steps that share a place, `x` in per cent; `signs` are (kind, sign)."""

    x: float
    signs: list[tuple[str, str]]
    title: str
    link: str


def shown(run: Run) -> dict[str, Any]:
    """The context of `run/timeline.html`; `events` only where something happened."""
    told = timeline.of(run)
    return {"events": row(run, told) if told else None}


def row(run: Run, told: Told) -> dict[str, Any]:
    return {
        "marks": marks(run, told),
        "low": told.low,
        "high": told.high,
        "counts": [(kind, SIGNS[kind], _(CALLED[kind]), count(told.events, kind)) for kind in timeline.KINDS],
        "ticks": ticks(told),
        "lines": [(one, SIGNS[one.kind], said([one]), link(run, one)) for one in told.events[::-1][:MOST]],
        "more": len(told.events) > MOST,
    }


def count(found: Sequence[Event], kind: str) -> int:
    return sum(one.kind == kind for one in found)


def marks(run: Run, told: Told) -> list[Mark]:
    slots: dict[int, list[Event]] = {}
    for one in told.events:
        slots.setdefault(slot(told, one, SLOTS), []).append(one)
    return [mark(run, at, found) for at, found in slots.items()]


def ticks(told: Told) -> list[tuple[str, int]]:
    """[(kind, step)] in step order, at most one of a kind in each of `TICKS` places."""
    first: dict[tuple[str, int], int] = {}
    for one in told.events:
        first.setdefault((one.kind, slot(told, one, TICKS)), one.step)
    return [(kind, step) for (kind, _place), step in first.items()]


def slot(told: Told, one: Event, slots: int) -> int:
    """Which of so many places on the axis it has."""
    return (one.step - told.low) * (slots - 1) // max(1, told.high - told.low)


def mark(run: Run, at: int, found: Sequence[Event]) -> Mark:
    """Opens the chief thing among those that share the place."""
    kinds = [kind for kind in timeline.KINDS if count(found, kind)]
    title = " · ".join(said([one for one in found if one.kind == kind]) for kind in kinds)
    chief = next(one for one in found if one.kind == kinds[0])
    return Mark(round(100 * (at + 0.5) / SLOTS, 2), [(kind, SIGNS[kind]) for kind in kinds], title, link(run, chief))


def link(run: Run, one: Event) -> str:
    """Flags open what is flagged; anything else the nearest step with samples, since not every step has some."""
    split = "" if one.split == "train" else one.split
    if one.kind == "flagged":
        return reverse("step", args=[run.uid, one.step]) + str(Ask(split=split, q="is:flagged").link())
    return reverse("nearest", args=[run.uid, one.step]) + str(Ask(split=split).link())


def said(found: Sequence[Event]) -> str:
    """What happened, of events of one kind at one step, in whichever splits, or at neighbouring ones."""
    first, last, count = found[0].step, found[-1].step, total(found)
    if first != last:
        return several(found[0].kind).format(first=first, last=last, count=count)
    match found[0].kind:
        case "failed":
            return _("step {step}: the training failed").format(step=first)
        case "restarted":
            return _("step {step}: launch {number} begins").format(step=first, number=found[-1].count)
        case "flagged":
            marked = ngettext("step {step}: {count} flag", "step {step}: {count} flags", count)
            return marked.format(step=first, count=count)
        case "pinned":
            return _("step {step}: pinned").format(step=first)
        case _other:
            return _("step {step}: replayed").format(step=first)


def several(kind: str) -> str:
    return {
        "restarted": _("steps {first} to {last}: {count} launches begin"),
        "flagged": _("steps {first} to {last}: {count} flags"),
        "pinned": _("steps {first} to {last}: {count} pinned"),
        "replayed": _("steps {first} to {last}: {count} replayed"),
    }[kind]


def total(found: Sequence[Event]) -> int:
    return sum(one.count for one in found) if found[0].kind == "flagged" else len(found)
