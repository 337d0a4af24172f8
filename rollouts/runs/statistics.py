"""Numbers of many runs for the run list and its queries: scores, steps, samples, flags, pins, hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import Count, Exists, Max, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from rollouts.lib import CacheSize, NewestCache
from rollouts.models import WEIGHTED_SCORE, Attempt, Pin, Run, Step, add_steps, join_concurrent_steps
from rollouts.runs.configs import RunId, map_versions


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


class SplitTotals(NamedTuple):
    """Of the current steps of one split of a run."""

    steps: int = 0
    samples: int = 0
    flags: int = 0
    best: float | None = None


class LastStep(NamedTuple):
    pk: int = 0
    run: int = 0
    step: int | None = None
    score: float | None = None
    truncated: int | None = None
    samples: int = 0


cache: NewestCache[RunId, RunStatistics] = NewestCache(CacheSize.RUN_STATISTICS)


def load_run_statistics(runs: Sequence[Run]) -> dict[int, RunStatistics]:
    """Returns the statistics by run id. Only runs that changed are queried, all in three queries."""

    def load(missing: Sequence[RunId]) -> Mapping[RunId, RunStatistics]:
        found = query_statistics([pk for pk, _created_at in missing])
        return {run: found[run[0]] for run in missing}

    return {pk: statistics for (pk, _), statistics in cache.load_many(map_versions(runs), load).items()}


def query_statistics(run_ids: Sequence[int]) -> dict[int, RunStatistics]:
    last = {row.run: row for row in load_last_steps(run_ids)}
    totals: dict[int, dict[str, SplitTotals]] = defaultdict(dict)
    steps = Step.objects.current().filter(run__in=run_ids).order_by()
    rows = steps.values("run", "split").annotate(
        step_count=Count("pk"), sample_count=Sum("samples"), flag_count=Sum("flags"), best=Max("score_mean")
    )
    for run, split, *values in rows.values_list("run", "split", "step_count", "sample_count", "flag_count", "best"):
        totals[run][split] = SplitTotals(*values)
    hosts: dict[int, dict[str, None]] = defaultdict(dict)
    pinned: set[int] = set()
    concurrent: set[int] = set()
    has_pin = Exists(Pin.objects.filter(attempt=OuterRef("pk"), removed_at=None))
    attempts = Attempt.objects.filter(run__in=run_ids).annotate(has_pin=has_pin).order_by("run", "number")
    for run, host, attempt_has_pin, first in attempts.values_list("run", "host", "has_pin", "concurrent_with"):
        hosts[run][host] = None
        if attempt_has_pin:
            pinned.add(run)
        if first is not None:
            concurrent.add(run)
    if concurrent:
        count_concurrent_steps(concurrent, totals)
        last |= load_concurrent_last_steps([last[run].pk for run in concurrent if run in last])
    result: dict[int, RunStatistics] = {}
    for run in run_ids:
        own = totals.get(run, {})
        step = last.get(run, LastStep())
        result[run] = RunStatistics(
            step=step.step,
            score=step.score,
            best=own.get("train", own.get("eval", SplitTotals())).best,
            truncated=None if step.truncated is None else step.truncated / max(1, step.samples),
            steps=sum(split.steps for split in own.values()),
            samples=sum(split.samples for split in own.values()),
            flags=sum(split.flags for split in own.values()),
            pinned=run in pinned,
            started=run in hosts,
            hosts=tuple(filter(None, hosts.get(run, ()))),
        )
    return result


def count_concurrent_steps(run_ids: Iterable[int], totals: Mapping[int, dict[str, SplitTotals]]) -> None:
    """Counts the rows of a step that attempts at the same time have as one step, with their mean score."""
    steps = Step.objects.current().filter(run__in=run_ids).order_by()
    rows = steps.values("run", "split", "step_kind", "step").annotate(score=WEIGHTED_SCORE)
    scores: dict[tuple[int, str], list[float | None]] = defaultdict(list)
    for run, split, score in rows.values_list("run", "split", "score"):
        scores[run, split].append(score)
    for (run, split), own in scores.items():
        best = max((score for score in own if score is not None), default=None)
        totals[run][split] = totals[run][split]._replace(steps=len(own), best=best)


def load_concurrent_last_steps(step_ids: Collection[int]) -> dict[int, LastStep]:
    """Returns the latest steps by run id, with the numbers of all attempts that run at the same time."""
    steps = Step.objects.filter(pk__in=step_ids).select_related("attempt")
    joined, last = join_concurrent_steps(list(steps)), {}
    for step in steps:
        own = add_steps(joined[step.pk])
        last[step.run_id] = LastStep(step.pk, step.run_id, own.step, own.score_mean, own.truncated, own.samples)
    return last


def load_last_steps(run_ids: Sequence[int]) -> Iterator[LastStep]:
    """Returns the latest step of each run."""

    def find_last(split: str) -> Subquery:
        steps = Step.objects.current().filter(run=OuterRef("pk"), split=split)
        return Subquery(steps.order_by("-step").values("pk")[:1])

    last = Run.objects.filter(pk__in=run_ids).annotate(last=Coalesce(find_last("train"), find_last("eval")))
    ids = last.exclude(last=None).values("last")
    steps = Step.objects.filter(pk__in=ids)
    return map(LastStep._make, steps.values_list("pk", "run_id", "step", "score_mean", "truncated", "samples"))
