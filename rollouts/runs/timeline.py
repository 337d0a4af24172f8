"""What happened to a run beside its metrics: flags, pins, replayed steps, launches after the first, a failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Max, Min, QuerySet

from rollouts.models import Block, MetricRow, Run, Step

EVENT_KINDS: Final = ("failed", "restarted", "flagged", "pinned", "replayed")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something of one `kind` at a step. `count` is of flags; of a restart it is the number of the launch."""

    kind: str
    step: int
    split: str = "train"
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunTimeline:
    """In step order. `low` and `high` are the first and the last step that the run recorded anything of."""

    events: list[RunEvent]
    low: int
    high: int


def load_run_timeline(run: Run) -> RunTimeline | None:
    """None where nothing happened. Eleven queries at most."""
    found = [*flagged(run), *pinned(run), *replayed(run), *restarted(run)]
    broke = run.outcome == Run.Outcome.FAILED
    ends = span(run) if found or broke else None
    if broke and ends:
        found.append(RunEvent("failed", ends[1]))
    if not found:
        return None
    found.sort(key=lambda one: (one.step, EVENT_KINDS.index(one.kind), one.count))
    low, high = ends or (found[0].step, found[-1].step)
    return RunTimeline(found, min(low, found[0].step), max(high, found[-1].step))


def flagged(run: Run) -> list[RunEvent]:
    if not run.flags.filter(withdrawn_at=None).exists():  # else every step is looked at
        return []
    rows = run.steps.filter(superseded=False, flags__gt=0).order_by("step").values_list("step", "split", "flags")
    return [RunEvent("flagged", *row) for row in rows]


def pinned(run: Run) -> list[RunEvent]:
    rows = run.pins.filter(removed_at=None).values_list("step", "split").distinct()
    return [RunEvent("pinned", *row) for row in rows]


def replayed(run: Run) -> list[RunEvent]:
    steps = run.replays.filter(outcome="hit").values_list("step", flat=True).distinct()
    return [RunEvent("replayed", step) for step in steps]


def restarted(run: Run) -> list[RunEvent]:
    """The first step that each later launch recorded; one that has recorded nothing yet has none."""
    later = dict(run.attempts.filter(number__gt=1).values_list("pk", "number"))
    if not later:
        return []
    first: dict[int, int] = {}
    for table, fields in tables(run):
        attempt, start, _ = fields
        rows = table.filter(**{f"{attempt}__in": later}).values_list(attempt).annotate(first=Min(start))
        for pk, step in rows.order_by():
            first[pk] = min(step, first.get(pk, step))
    return [RunEvent("restarted", step, count=later[pk]) for pk, step in first.items()]


def span(run: Run) -> tuple[int, int] | None:
    """The first and the last step of its samples and metrics."""
    ends = [table.aggregate(low=Min(start), high=Max(end)) for table, (_, start, end) in tables(run)]
    known = [one for one in ends if one["low"] is not None]
    return (min(one["low"] for one in known), max(one["high"] for one in known)) if known else None


def tables(run: Run) -> Iterable[tuple[QuerySet[Any], tuple[str, str, str]]]:
    """Where steps are recorded: rows, and their fields for the launch, the first and the last step."""
    yield Step.objects.filter(run=run), ("attempt_id", "step", "step")
    yield MetricRow.objects.filter(run=run), ("attempt_id", "step", "step")
    yield Block.objects.filter(series__run=run), ("series__attempt_id", "first", "last")
