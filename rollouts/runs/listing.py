"""The status of many runs in a few queries."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from django.db.models import F, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from rollouts.models import (
    MAX_TIMED_STEPS,
    SILENT_AFTER,
    SILENT_AFTER_STEPS,
    Attempt,
    Run,
    Step,
    compute_median_gap,
)


def load_run_statuses(runs: Sequence[Run], known_started: Collection[int] = ()) -> dict[int, str]:
    """Returns `Run.status` of many runs by id. Queries only the runs that have not ended. `known_started`: ids of runs
    that have an attempt."""
    now = timezone.now()
    started = set(known_started)
    if unknown := [run.pk for run in runs if not run.outcome and run.pk not in started]:
        started.update(Attempt.objects.filter(run__in=unknown).values_list("run", flat=True))
    candidates = [run for run in runs if not run.outcome and run.pk in started and now - run.seen_at > SILENT_AFTER]
    medians = load_median_step_intervals([run.pk for run in candidates])
    statuses = {run.pk: run.outcome or ("running" if run.pk in started else "planned") for run in runs}
    for run in candidates:
        if now - run.seen_at > SILENT_AFTER_STEPS * medians.get(run.pk, timedelta(0)):
            statuses[run.pk] = "silent"
    return statuses


def load_median_step_intervals(run_ids: Sequence[int]) -> dict[int, timedelta]:
    """Returns `Run.median_step_interval` of many runs by id."""
    if not run_ids:
        return {}
    newest = Window(RowNumber(), partition_by=[F("run")], order_by=F("step").desc())
    steps = Step.objects.filter(run__in=run_ids, split="train").annotate(newest=newest)
    arrivals: dict[int, list[datetime]] = defaultdict(list)
    for run, arrived_at in steps.filter(newest__lte=MAX_TIMED_STEPS).values_list("run", "created_at"):
        arrivals[run].append(arrived_at)
    return {run: compute_median_gap(times) for run, times in arrivals.items()}
