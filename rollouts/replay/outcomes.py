"""What came of a plan: at each step of a run, was it replayed, generated or refused, and what that saved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from rolloutdeck.protocol import REPLAY_OUTCOMES, STEP_KINDS, resolve_target
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer
from rollouts.live import notify_run_changed
from rollouts.metrics import load_curves
from rollouts.models import Binding, Pin, Replay, Run

MOST_REASON = 2000
# Metrics that tell how many seconds a step's generation took, as the trainers name them.
GENERATION = ("timing_s/gen", "perf/rollout_time", "time/step_generate")
WORDS = {"hit": "replayed", "miss": "generated", "refused": "refused"}


@transaction.atomic
def record_replay_outcome(
    run: Run,
    attempt: str,
    step: int,
    outcome: str,
    *,
    step_kind: str = "global_step",
    pin: int | None = None,
    rows: int | None = None,
    seconds: float | None = None,
    reason: str | None = None,
) -> tuple[Replay, bool]:
    """What happened at a step; told again, the last word stands. The bool says whether it is new.

    Without `pin` it is the one that the run's plan has there. Raises BadInput, NotThere.
    """
    outcome = parse_choice(outcome, "outcome", REPLAY_OUTCOMES, default="")
    if not outcome:
        raise InvalidInputError(f"`outcome` must be one of: {', '.join(REPLAY_OUTCOMES)}.", "outcome")
    source = source_of(run, step, pin)
    told: dict[str, Any] = {
        "outcome": outcome,
        "pin": source,
        "rows": parse_integer(rows, "rows", most=2**31 - 1),
        "seconds": seconds_of(seconds),
        "reason": printable(reason),
        "saved": generation_of(source) if source and outcome == "hit" and step_kind == source.step_kind else None,
    }
    launched = get_or_create_attempt(run, attempt)
    kind = parse_choice(step_kind, "step_kind", STEP_KINDS, default="global_step")
    row, created = Replay.objects.update_or_create(run=run, attempt=launched, step_kind=kind, step=step, defaults=told)
    record_activity(run, launched)
    notify_run_changed(run, split="train", step=step, topics=("pins",))
    return row, created


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """What the revision that a run is bound to says of each step."""

    action: str
    pins: dict[int, Pin]  # by target step

    @classmethod
    def of(cls, run: Run) -> BoundPlan:
        bound = Binding.objects.filter(run=run).select_related("revision").first()
        if bound is None or bound.revision is None:
            return cls("cache", {})
        entries = bound.revision.entries.select_related("pin__run", "pin__attempt")
        return cls(bound.revision.action, {one.target_step: one.pin for one in entries})

    def pin_at(self, step: int) -> Pin | None:
        target = resolve_target(self.action, list(self.pins), step)
        return None if target is None else self.pins[target]


def source_of(run: Run, step: int, pin: int | None) -> Pin | None:
    """Raises NotThere for a pin of another project."""
    if pin is not None:
        found = Pin.objects.select_related("run", "attempt").filter(pk=pin, project=run.project_id).first()
        if found is None:
            raise NotFoundError(f"There is no pin {pin} in this project.", "pin")
        return found
    return BoundPlan.of(run).pin_at(step)


def seconds_of(value: Any) -> float | None:
    """Raises BadInput."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise InvalidInputError("`seconds` must be a number of seconds.", "seconds")
    return float(value)


def printable(reason: Any) -> str:
    if not isinstance(reason, str | None):
        raise InvalidInputError("`reason` must be a string.", "reason")
    return (reason or "").replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:MOST_REASON]


def generation_of(pin: Pin) -> float | None:
    """Seconds that generating the pinned step took, where its run has logged it; of its own launch first."""
    curves = load_curves(pin.run, GENERATION, attempt="all")[pin.run.uid]
    found: dict[str, float] = {}
    for curve in (one for name in GENERATION for one in curves[name] if one["step_kind"] == pin.step_kind):
        value = dict(zip(curve["steps"], curve["values"], strict=True)).get(pin.step)
        if value is not None:
            found[curve["attempt"]] = value
    return found.get(pin.attempt.key, next(reversed(found.values()), None) if found else None)


@dataclass(frozen=True, slots=True)
class ReplayTimelineStep:
    """One step of a run: `replayed`, `generated` or `refused` as its trainer told; `planned` where the plan replays a
    pin and nobody told what came of it; `none` where no plan speaks of it. `pin` is what was, or would be, replayed."""

    step: int
    step_kind: str
    state: str
    pin: Pin | None = None
    rows: int | None = None
    seconds: float | None = None
    saved: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReplayTimeline:
    """A run's cells in step order. `saved` sums what generating the source steps had taken, over the `estimated`
    replayed steps that it is known of; `seconds` is what loading took."""

    cells: tuple[ReplayTimelineStep, ...]
    counts: dict[str, int]
    rows: int
    seconds: float
    saved: float
    estimated: int


def load_replay_timeline(run: Run) -> ReplayTimeline:
    """One cell per training step of the run that anything tells of, the last launch's word for each."""
    events = Replay.objects.filter(run=run).select_related("pin__run", "attempt").order_by("attempt__number", "pk")
    told = {(event.step_kind, event.step): event for event in events}
    planned, places = BoundPlan.of(run), {*told, *trained(run)}
    cells = tuple(cell(kind, step, told.get((kind, step)), planned) for kind, step in sorted(places))
    return totalled(cells)


def trained(run: Run) -> Iterable[tuple[str, int]]:
    rows = run.steps.current().filter(split="train", step_kind="global_step")
    return {(str(kind), int(step)) for kind, step in rows.values_list("step_kind", "step")}


def cell(kind: str, step: int, event: Replay | None, planned: BoundPlan) -> ReplayTimelineStep:
    if event is None:
        pin = planned.pin_at(step)
        return ReplayTimelineStep(step, kind, "planned" if pin else "none", pin)
    return ReplayTimelineStep(
        step, kind, WORDS[event.outcome], event.pin, event.rows, event.seconds, event.saved, event.reason
    )


def totalled(cells: tuple[ReplayTimelineStep, ...]) -> ReplayTimeline:
    hits = [one for one in cells if one.state == "replayed"]
    known = [one.saved for one in hits if one.saved is not None]
    states = ("replayed", "generated", "refused", "planned", "none")
    return ReplayTimeline(
        cells,
        {state: sum(one.state == state for one in cells) for state in states},
        rows=sum(one.rows or 0 for one in hits),
        seconds=sum(one.seconds or 0.0 for one in hits),
        saved=sum(known),
        estimated=len(known),
    )
