"""Numbers of many runs for the run list and its queries: scores, steps, samples, flags, pins, hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Exists, Max, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from rollouts.lib import Cache, CacheSize
from rollouts.models import Attempt, Pin, Run, Step
from rollouts.runs.configs import RunVersion


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """`step`, `score` (mean) and `truncated` (a share) are those of the latest step of train, or of eval if the run has
    no other. `best` is the highest mean score of a step. `started`: the run has an attempt."""

    step: int | None = None
    score: float | None = None
    best: float | None = None
    truncated: float | None = None
    steps: int = 0
    samples: int = 0
    flags: int = 0
    pinned: bool = False
    started: bool = False
    hosts: tuple[str, ...] = ()


cache: Cache[RunVersion, RunStatistics] = Cache(CacheSize.RUN_STATISTICS)


def load_run_statistics(runs: Sequence[Run]) -> dict[int, RunStatistics]:
    """Returns the statistics by run id. Only runs that changed are queried, all in three queries."""
    versions = [(run.pk, run.created_at, run.version) for run in runs]

    def load(missing: Iterable[RunVersion]) -> dict[RunVersion, RunStatistics]:
        found = query_statistics([version[0] for version in missing])
        return {version: found[version[0]] for version in missing}

    return {version[0]: statistics for version, statistics in cache.get_many(versions, load).items()}


def query_statistics(run_ids: Sequence[int]) -> dict[int, RunStatistics]:
    last = {row[0]: row[1:] for row in load_last_steps(run_ids)}
    totals: dict[int, dict[str, tuple[int, int, int, float | None]]] = defaultdict(dict)
    steps = Step.objects.current().filter(run__in=run_ids).order_by()
    rows = steps.values("run", "split").annotate(
        step_count=Count("pk"), sample_count=Sum("samples"), flag_count=Sum("flags"), best=Max("score_mean")
    )
    for run, split, *values in rows.values_list("run", "split", "step_count", "sample_count", "flag_count", "best"):
        totals[run][split] = (values[0], values[1], values[2], values[3])
    hosts: dict[int, dict[str, None]] = defaultdict(dict)
    pinned: set[int] = set()
    has_pin = Exists(Pin.objects.filter(attempt=OuterRef("pk"), removed_at=None))
    attempts = Attempt.objects.filter(run__in=run_ids).annotate(has_pin=has_pin).order_by("run", "number")
    for run, host, attempt_has_pin in attempts.values_list("run", "host", "has_pin"):
        hosts[run][host] = None
        if attempt_has_pin:
            pinned.add(run)
    result: dict[int, RunStatistics] = {}
    for run in run_ids:
        own = totals.get(run, {})
        step, score, truncated, samples = last.get(run, (None, None, None, 0))
        result[run] = RunStatistics(
            step=step,
            score=score,
            best=own.get("train", own.get("eval", (0, 0, 0, None)))[3],
            truncated=None if truncated is None else truncated / max(1, samples),
            steps=sum(values[0] for values in own.values()),
            samples=sum(values[1] or 0 for values in own.values()),
            flags=sum(values[2] or 0 for values in own.values()),
            pinned=run in pinned,
            started=run in hosts,
            hosts=tuple(filter(None, hosts.get(run, ()))),
        )
    return result


def load_last_steps(run_ids: Sequence[int]) -> QuerySet[Step, tuple[int, int, float | None, int | None, int]]:
    """Returns (run, step, score, truncated, samples) of the latest step of each run."""

    def find_last(split: str) -> Subquery:
        steps = Step.objects.current().filter(run=OuterRef("pk"), split=split)
        return Subquery(steps.order_by("-step").values("pk")[:1])

    last = Run.objects.filter(pk__in=run_ids).annotate(last=Coalesce(find_last("train"), find_last("eval")))
    ids = last.exclude(last=None).values("last")
    return Step.objects.filter(pk__in=ids).values_list("run_id", "step", "score_mean", "truncated", "samples")
