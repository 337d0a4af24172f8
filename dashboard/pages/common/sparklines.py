"""The figures of many runs at once: score over steps in a few points, last step, truncation, flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import or_

from django.db.models import Max, Q, Sum

from rollouts.lib import MAX_SPARKLINES, Cache
from rollouts.metrics import load_sparklines
from rollouts.models import Run, Step


@dataclass(frozen=True, slots=True)
class RunSparkline:
    """`points` is an SVG polyline, x to 100 and y to 20."""

    last: Step | None = None
    points: str = ""
    flags: int = 0


Key = tuple[int, datetime, int]
kept: Cache[Key, RunSparkline] = Cache(MAX_SPARKLINES)


def load_run_sparklines(runs: Sequence[Run]) -> dict[int, RunSparkline]:
    """By run id. A run's version names its content, so only runs that changed are asked for, all in a few queries."""
    keys = {key(run): run for run in runs}
    found = kept.get_many(keys, lambda missing: made([keys[one] for one in missing]))
    return {run.pk: found[key(run)] for run in runs}


def made(runs: Sequence[Run]) -> dict[Key, RunSparkline]:
    fresh = asked(runs)
    return {key(run): fresh.get(run.pk, RunSparkline()) for run in runs}


def key(run: Run) -> Key:
    return run.pk, run.created_at, run.version


def asked(runs: Sequence[Run]) -> dict[int, RunSparkline]:
    steps = Step.objects.current().filter(run__in=runs)
    flags = dict(steps.values("run").annotate(flags=Sum("flags")).values_list("run", "flags"))
    spans = {
        row["run"]: row
        for split in ("eval", "train")
        for row in steps.filter(split=split).values("run", "split").annotate(high=Max("step"))
    }
    if not spans:
        return {}
    shown = steps.filter(reduce(or_, (Q(run=row["run"], split=row["split"]) for row in spans.values())))
    ends = reduce(or_, (Q(run=row["run"], step=row["high"]) for row in spans.values()))
    last = {step.run_id: step for step in shown.filter(ends)}
    lines = load_sparklines(runs)
    return {
        run.pk: RunSparkline(last.get(run.pk), build_polyline_points(lines[run.uid]), flags.get(run.pk) or 0)
        for run in runs
    }


def build_polyline_points(scores: list[float]) -> str:
    """From the lowest score (or 0) at the bottom to the highest (or 0) on top."""
    if not scores:
        return ""
    low, high = min(0.0, *scores), max(0.0, *scores)
    drawn = scores if len(scores) > 1 else scores * 2
    heights = [19 - 18 * (score - low) / ((high - low) or 1.0) for score in drawn]
    return " ".join(f"{100 * at / (len(drawn) - 1):.1f},{y:.1f}" for at, y in enumerate(heights))
