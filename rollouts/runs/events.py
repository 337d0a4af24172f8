"""The events of a run: flags, pins, replayed steps, later attempts, and a failure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Max, Min, QuerySet

from rollouts.models import Block, MetricRow, Run, Step

EVENT_KINDS: Final = ("failed", "restarted", "flagged", "pinned", "replayed")


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a `kind` at a step. `count` is the number of flags, or the number of a later attempt."""

    kind: str
    step: int
    split: str = "train"
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The events in step order, and the first and the last step with any data."""

    events: list[RunEvent]
    first_step: int
    last_step: int


def load_run_events(run: Run) -> RunEvents | None:
    """Returns None if there is no event. Makes at most eleven queries."""
    pinned = run.pins.filter(removed_at=None).values_list("step", "split").distinct()
    replayed = run.replays.filter(outcome="hit").values_list("step", flat=True).distinct()
    events = [
        *find_flagged_steps(run),
        *(RunEvent("pinned", step, split) for step, split in pinned),
        *(RunEvent("replayed", step) for step in replayed),
        *find_restarts(run),
    ]
    has_failed = run.outcome == Run.Outcome.FAILED
    span = find_step_span(run) if events or has_failed else None
    if has_failed and span:
        events.append(RunEvent("failed", span[1]))
    if not events:
        return None
    events.sort(key=lambda event: (event.step, EVENT_KINDS.index(event.kind), event.count))
    first, last = span or (events[0].step, events[-1].step)
    return RunEvents(events, min(first, events[0].step), max(last, events[-1].step))


def find_flagged_steps(run: Run) -> list[RunEvent]:
    if not run.labels.flags().active().exists():  # avoids a scan of all steps
        return []
    rows = run.steps.current().filter(flags__gt=0).order_by("step").values_list("step", "split", "flags")
    return [RunEvent("flagged", *row) for row in rows]


def find_restarts(run: Run) -> list[RunEvent]:
    """Returns the first step of each restart that has one."""
    later = dict(run.attempts.restarts().values_list("pk", "number"))
    if not later:
        return []
    first_steps: dict[int, int] = {}
    for table, attempt, start, _ in iter_step_tables(run):
        rows = table.filter(**{f"{attempt}__in": later}).values_list(attempt).annotate(first=Min(start))
        for pk, step in rows.order_by():
            first_steps[pk] = min(step, first_steps.get(pk, step))
    return [RunEvent("restarted", step, count=later[pk]) for pk, step in first_steps.items()]


def find_step_span(run: Run) -> tuple[int, int] | None:
    """Returns the first and the last step of the run's samples and metrics."""
    spans = [table.aggregate(low=Min(start), high=Max(end)) for table, _, start, end in iter_step_tables(run)]
    known = [(span["low"], span["high"]) for span in spans if span["low"] is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def iter_step_tables(run: Run) -> Iterator[tuple[QuerySet[Any], str, str, str]]:
    """Yields the rows that have steps, and their fields for the attempt, the first and the last step."""
    yield Step.objects.filter(run=run), "attempt_id", "step", "step"
    yield MetricRow.objects.filter(run=run), "attempt_id", "step", "step"
    yield Block.objects.filter(series__run=run), "series__attempt_id", "first", "last"
