"""Sparklines of many runs: mean scores over steps, the last step, flags."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import Max, Q, Sum

from rollouts.lib import MAX_SPARKLINES, Cache
from rollouts.metrics import load_sparklines
from rollouts.models import Run, Step

RunVersion = tuple[int, datetime, int]  # a run's id, birth and version, which name its content


@dataclass(frozen=True, slots=True)
class RunSparkline:
    """`points` is an SVG polyline, x up to 100 and y up to 20."""

    last: Step | None = None
    points: str = ""
    flags: int = 0


cache: Cache[RunVersion, RunSparkline] = Cache(MAX_SPARKLINES)


def load_run_sparklines(runs: Sequence[Run]) -> dict[int, RunSparkline]:
    """By run id. Only runs that changed are queried, all in a few queries."""
    versions = {(run.pk, run.created_at, run.version): run for run in runs}

    def load(missing: Iterable[RunVersion]) -> dict[RunVersion, RunSparkline]:
        changed = query_sparklines([versions[version] for version in missing])
        return {version: changed.get(version[0], RunSparkline()) for version in missing}

    return {version[0]: sparkline for version, sparkline in cache.get_many(versions, load).items()}


def query_sparklines(runs: Sequence[Run]) -> dict[int, RunSparkline]:
    steps = Step.objects.current().filter(run__in=runs)
    flags = dict(steps.values("run").annotate(flags=Sum("flags")).values_list("run", "flags"))
    spans = {  # of train, if the run has it, else of eval
        row["run"]: row
        for split in ("eval", "train")
        for row in steps.filter(split=split).values("run", "split").annotate(high=Max("step"))
    }
    if not spans:
        return {}
    of_split = reduce(or_, (Q(run=row["run"], split=row["split"]) for row in spans.values()))
    is_last = reduce(or_, (Q(run=row["run"], step=row["high"]) for row in spans.values()))
    last = {step.run_id: step for step in steps.filter(of_split).filter(is_last)}
    scores = load_sparklines(runs)
    return {
        run.pk: RunSparkline(last.get(run.pk), build_polyline_points(scores[run.uid]), flags.get(run.pk) or 0)
        for run in runs
    }


def build_polyline_points(scores: list[float]) -> str:
    """The lowest score, or 0, is at the bottom; the highest, or 0, at the top."""
    if not scores:
        return ""
    low, high = min(0.0, *scores), max(0.0, *scores)
    scores = scores if len(scores) > 1 else scores * 2
    heights = [19 - 18 * (score - low) / ((high - low) or 1.0) for score in scores]
    return " ".join(f"{100 * at / (len(scores) - 1):.1f},{y:.1f}" for at, y in enumerate(heights))
