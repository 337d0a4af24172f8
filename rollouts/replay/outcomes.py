"""Outcomes of a plan: at each step of a run, whether it was replayed, generated or refused, and the saved time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from django.db import transaction

from rolloutdeck.protocol import REPLAY_OUTCOMES, SELECTED_ACTIONS, STEP_KINDS, resolve_target
from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.ingest import FILES_ATTEMPT_PATTERN, get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer
from rollouts.live import notify_run_changed
from rollouts.metrics import load_curves
from rollouts.models import Binding, Pin, Replay, Run

MAX_REASON_CHARS = 2000
PROMPT_KIND = "feed_index"  # fully asynchronous trainers report prompts, not steps
# Metrics with the seconds that generating a step took, by trainer.
GENERATION_METRICS = ("timing_s/gen", "perf/rollout_time", "time/step_generate")
# Metrics with the seconds of a whole step, by trainer.
STEP_METRICS = ("timing_s/step", "train/step_time", "perf/step_time", "time/step_total")
STATES = {"hit": "replayed", "miss": "generated", "refused": "refused"}


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
    selected_action: str | None = None,
    selected: int | None = None,
    guidance_version: int | None = None,
) -> tuple[Replay, bool]:
    """Stores what happened at a step, or updates it. Returns the row and whether it is new.

    `selected` samples were masked, or prompts dropped or generated again, as `selected_action` says. Without `pin`, the
    pin is the one of the run's plan. Raises InvalidInputError and NotFoundError.
    """
    outcome = parse_choice(outcome, "outcome", REPLAY_OUTCOMES, default="")
    if not outcome:
        raise InvalidInputError(f"`outcome` must be one of: {', '.join(REPLAY_OUTCOMES)}.", "outcome")
    source = find_source_pin(run, step, pin, step_kind)
    saved = None
    if source and outcome == "hit" and step_kind == source.step_kind:
        saved = find_generation_seconds(source)
    values: dict[str, Any] = {
        "outcome": outcome,
        "pin": source,
        "rows": parse_integer(rows, "rows", maximum=2**31 - 1),
        "seconds": parse_seconds(seconds),
        "reason": clean_reason(reason),
        "saved": saved,
        "selected_action": parse_choice(selected_action, "selected_action", ("", *SELECTED_ACTIONS), default=""),
        "selected": parse_integer(selected, "selected", maximum=2**31 - 1),
        "guidance_version": parse_integer(guidance_version, "guidance_version", maximum=2**31 - 1),
    }
    run_attempt = get_or_create_attempt(run, attempt)
    kind = parse_choice(step_kind, "step_kind", STEP_KINDS, default="global_step")
    row, created = Replay.objects.update_or_create(
        run=run, attempt=run_attempt, step_kind=kind, step=step, defaults=values
    )
    record_activity(run, run_attempt)
    notify_run_changed(run, split="train", step=step, topics=("pins",))
    return row, created


@dataclass(frozen=True)
class BoundPlan:
    """The plan revision that a run is bound to: its action, and its pins by target step."""

    action: str
    pins: dict[int, Pin]

    @classmethod
    def load(cls, run: Run) -> BoundPlan:
        binding = Binding.objects.filter(run=run).select_related("revision").first()
        if binding is None or binding.revision is None:
            return cls("cache", {})
        entries = binding.revision.entries.select_related("pin__run", "pin__attempt")
        return cls(binding.revision.action, {entry.target_step: entry.pin for entry in entries})

    def get_pin(self, step: int) -> Pin | None:
        target = resolve_target(self.action, list(self.pins), step)
        return None if target is None else self.pins[target]

    def find_prompt_target(self, row: Replay) -> int | None:
        """Returns the target step of a prompt that was reported alone; None for the report of a step, and if the plan
        replays the pin at several steps."""
        if self.action != "cache" or row.pin is None or not is_prompt_of_step(row.step_kind, row.pin):
            return None
        targets = self.targets_by_pin.get(row.pin_id or 0, [])
        return targets[0] if len(targets) == 1 else None

    @cached_property
    def targets_by_pin(self) -> dict[int, list[int]]:
        targets: dict[int, list[int]] = defaultdict(list)
        for target, pin in self.pins.items():
            targets[pin.pk].append(target)
        return targets


def is_prompt_of_step(step_kind: str, pin: Pin) -> bool:
    """Whether a report of this kind is about one prompt of the pinned training step."""
    return step_kind == PROMPT_KIND != pin.step_kind


def find_source_pin(run: Run, step: int, pk: int | None, step_kind: str) -> Pin | None:
    """Raises NotFoundError for a pin of another project."""
    if pk is None:
        planned = BoundPlan.load(run).get_pin(step)
        return None if planned and is_prompt_of_step(step_kind, planned) else planned
    pin = Pin.objects.select_related("run", "attempt").filter(pk=pk, project=run.project_id).first()
    if pin is None:
        raise NotFoundError(f"There is no pin {pk} in this project.", "pin")
    return pin


def parse_seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise InvalidInputError("`seconds` must be a number of seconds.", "seconds")
    return float(value)


def clean_reason(reason: Any) -> str:
    if not isinstance(reason, str | None):
        raise InvalidInputError("`reason` must be a string.", "reason")
    return (reason or "").replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:MAX_REASON_CHARS]


def find_generation_seconds(pin: Pin) -> float | None:
    """Returns how long generating the pinned step took if it was logged, preferably by the pin's own attempt."""
    return load_generation_seconds([pin]).get(pin.pk)


def load_generation_seconds(pins: Iterable[Pin]) -> dict[int, float]:
    """Returns how long generating the pinned steps took, by pin id, as far as it was logged. One query per run."""
    by_run: dict[int, list[Pin]] = defaultdict(list)
    for pin in pins:
        by_run[pin.run_id].append(pin)
    seconds: dict[int, float] = {}
    for own in by_run.values():
        curves = load_curves(own[0].run, GENERATION_METRICS, attempt="all")[own[0].run.uid]
        points: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        for curve in chain.from_iterable(curves[name] for name in GENERATION_METRICS):
            for step, value in zip(curve["steps"], curve["values"], strict=True):
                if value is not None:
                    points[curve["step_kind"], step][curve["attempt"]] = value
        for pin in own:
            if found := points.get((pin.step_kind, pin.step)):
                seconds[pin.pk] = found.get(pin.attempt.key, next(reversed(found.values())))
    return seconds


@dataclass(frozen=True, slots=True)
class ReplayTimelineStep:
    """One step of a run: `replayed`, `generated` or `refused` as its trainer reported, `planned` if the plan replays a
    pin there and no outcome was reported, else `none`. `pin` is the one that was, or would be, replayed.

    If the trainer reported the prompts of the step, `prompts` is their number, and `rows` and `seconds` are those of
    the `replayed_prompts`.
    """

    step: int
    step_kind: str
    state: str
    pin: Pin | None = None
    rows: int | None = None
    seconds: float | None = None
    saved: float | None = None
    reason: str = ""
    selected_action: str = ""
    selected: int | None = None
    guidance_version: int | None = None
    prompts: int = 0
    replayed_prompts: int = 0


@dataclass(frozen=True, slots=True)
class ReplayTimeline:
    """The steps of a run in order. `saved` is the total time of generating the source steps, as far as it is known: of
    `estimated` replayed steps, whose loading took `estimated_seconds`. `seconds` is the time of loading all of them,
    `wall` the time that the run's steps took, 0 if it is unknown."""

    steps: tuple[ReplayTimelineStep, ...]
    counts: dict[str, int]
    rows: int
    seconds: float
    saved: float
    estimated: int
    estimated_seconds: float = 0.0
    wall: float = 0.0

    @property
    def saved_net(self) -> float:
        """The saved time, less that of loading what was replayed instead."""
        return self.saved - self.estimated_seconds


def load_replay_timeline(run: Run) -> ReplayTimeline:
    """Returns each training step that the run has data or an outcome of, with the last attempt's outcome. If only the
    prompts of a planned step were reported, it has the worst of their outcomes."""
    plan = BoundPlan.load(run)
    outcomes: dict[tuple[str, int], Replay] = {}
    prompts: dict[tuple[str, int], dict[int, Replay]] = defaultdict(dict)
    for row in (
        Replay.objects.filter(run=run)
        .select_related("pin__run", "pin__attempt", "attempt")
        .order_by("attempt__number", "pk")
    ):
        target = plan.find_prompt_target(row)
        if target is None:
            outcomes[row.step_kind, row.step] = row
        else:
            prompts[plan.pins[target].step_kind, target][row.step] = row
    trained_steps = run.steps.current().filter(split="train")
    trained = trained_steps.filter(step_kind=trained_steps.find_kind()).values_list("step_kind", "step")
    steps = tuple(
        build_prompts_step(kind, step, list(prompts[kind, step].values()))
        if (kind, step) in prompts
        else build_timeline_step(kind, step, outcomes.get((kind, step)), plan)
        for kind, step in sorted({*outcomes, *prompts, *trained})
    )
    replayed = [step for step in steps if step.state == "replayed" or step.replayed_prompts]
    estimated = [step for step in steps if step.state == "replayed" and step.saved is not None]
    counts = Counter(step.state for step in steps)
    return ReplayTimeline(
        steps,
        {state: counts[state] for state in ("replayed", "generated", "refused", "planned", "none")},
        rows=sum(step.rows or 0 for step in replayed),
        seconds=sum(step.seconds or 0.0 for step in replayed),
        saved=sum(step.saved or 0.0 for step in estimated),
        estimated=len(estimated),
        estimated_seconds=sum(step.seconds or 0.0 for step in estimated),
        wall=measure_wall_seconds(run) if estimated else 0.0,
    )


def measure_wall_seconds(run: Run) -> float:
    """Returns how long the steps of a run took: as logged, else the time in which its attempts sent data.

    Files arrive when they are read, so their attempts tell no time. Returns 0 if the time is unknown.
    """
    curves = load_curves(run, STEP_METRICS)[run.uid]
    for name in STEP_METRICS:
        if values := [value for curve in curves[name] for value in curve["values"] if value is not None]:
            return float(sum(values))
    attempts = [attempt for attempt in run.attempts.all() if not FILES_ATTEMPT_PATTERN.match(attempt.key)]
    return sum((attempt.seen_at - attempt.created_at).total_seconds() for attempt in attempts)


def build_timeline_step(kind: str, step: int, row: Replay | None, plan: BoundPlan) -> ReplayTimelineStep:
    if row is None:
        pin = plan.get_pin(step)
        return ReplayTimelineStep(step, kind, "planned" if pin else "none", pin)
    numbers = row.rows, row.seconds, row.saved, row.reason, row.selected_action, row.selected, row.guidance_version
    return ReplayTimelineStep(step, kind, STATES[row.outcome], row.pin, *numbers)


def build_prompts_step(kind: str, step: int, rows: Sequence[Replay]) -> ReplayTimelineStep:
    """The step whose prompts were reported one by one."""
    worst = find_worst(rows)
    replayed = [row for row in rows if row.outcome == "hit"]
    selected = [row.selected for row in rows if row.selected is not None]
    return ReplayTimelineStep(
        step,
        kind,
        STATES[worst.outcome],
        worst.pin,
        rows=sum(row.rows or 0 for row in replayed),
        seconds=sum(row.seconds or 0.0 for row in replayed),
        reason=worst.reason,
        selected_action=worst.selected_action,
        selected=sum(selected) if selected else None,
        guidance_version=worst.guidance_version,
        prompts=len(rows),
        replayed_prompts=len(replayed),
    )


def find_worst(rows: Sequence[Replay]) -> Replay:
    """Returns the last report that was refused, else the last one that was generated, else the last one."""
    missed = [row for row in rows if row.outcome == "refused"] or [row for row in rows if row.outcome == "miss"]
    return (missed or rows)[-1]
