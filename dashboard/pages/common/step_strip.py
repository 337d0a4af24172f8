"""The step strip of every run page: score as height, flags and replays as marks, any number of steps in `BARS` bars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Avg, Count, Exists, F, IntegerField, Max, Min, OuterRef, Q, QuerySet, Sum, Value
from django.db.models.functions import Cast

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.lib import MAX_STEP_STRIPS, cached
from rollouts.models import Attempt, Replay, Run, Step

MAX_STRIP_BARS = 120


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step, or neighbouring ones put together; `reused` counts those that replayed another's generations. `x width
    height y` are per cent of the strip."""

    first: int
    last: int
    score: float | None
    flags: int
    x: float
    width: float
    height: float
    reused: int = 0

    @property
    def y(self) -> float:
        return round(100 - self.height, 2)

    def holds(self, step: int | None) -> bool:
        return step is not None and self.first <= step <= self.last


@dataclass(frozen=True, slots=True)
class StepStrip:
    split: str
    bars: tuple[StepBar, ...]
    count: int
    last: int | None
    splits: tuple[str, ...]

    def ticks(self) -> list[tuple[float, int]]:
        """About eight labels: (place in per cent, step)."""
        every = max(1, -(-len(self.bars) // 8))
        return [(round(bar.x + bar.width / 2, 2), bar.last) for bar in self.bars[::every]]


@cached(MAX_STEP_STRIPS)
def load_step_kinds(run_id: int, born: datetime, version: int) -> dict[str, str]:
    """The run's splits, train first, and what the steps of each count. Where some count updates and others prompts, as
    the batches of a fully async run do, pages show the updates."""
    found = set(Step.objects.filter(run_id=run_id).order_by().values_list("split", "step_kind").distinct())
    splits = [split for split in SPLITS if any(one == split for one, _ in found)]
    return {split: next(kind for kind in STEP_KINDS if (split, kind) in found) for split in splits}


def find_step_kind(run: Run, split: str) -> str:
    """What the steps of a split count; empty where there are none."""
    return load_step_kinds(run.pk, run.created_at, run.version).get(split, "")


def find_default_split(run: Run) -> str:
    """What a page shows when its address names no split."""
    return next(iter(load_step_kinds(run.pk, run.created_at, run.version)), "train")


@cached(MAX_STEP_STRIPS)
def load_cached_step_strip(
    run_id: int, born: datetime, version: int, split: str, attempt_id: int | None = None
) -> StepStrip:
    """The strip of a run as of `version`, which rises with every visible change and so names the content."""
    axes = load_step_kinds(run_id, born, version)
    splits = tuple(axes)
    steps = Step.objects.filter(run_id=run_id, split=split, step_kind=axes.get(split, ""))
    steps = steps.filter(attempt=attempt_id) if attempt_id else steps
    steps = steps if attempt_id else steps.filter(superseded=False)
    hits = Replay.objects.filter(outcome="hit", run=run_id)
    told: dict[str, Any] = {"low": Min("step"), "high": Max("step"), "count": Count("pk"), "replays": Exists(hits)}
    span: Any = next(iter(steps.order_by().values("run").annotate(**told)), None)
    if span is None:
        return StepStrip(split, (), 0, None, splits)
    place = Cast(
        (F("step") - Value(span["low"])) * MAX_STRIP_BARS / Value(span["high"] - span["low"] + 1), IntegerField()
    )
    buckets = (
        steps.annotate(
            bucket=F("step") if span["count"] <= MAX_STRIP_BARS else place,
            hit=build_replayed_condition(hits, split, span["replays"]))
        .values("bucket")
        .annotate(
            first=Min("step"), last=Max("step"), score=Avg("score_mean"), marks=Sum("flags"),
            reused=Count("pk", filter=Q(hit=True)),
        )
        .order_by("bucket")
    )  # fmt: skip
    rows = [(row["first"], row["last"], row["score"], row["marks"], row["reused"]) for row in buckets]
    return StepStrip(split, tuple(build_step_bars(rows)), span["count"], span["high"], splits)


def build_replayed_condition(hits: QuerySet[Replay], split: str, there: bool) -> Exists | Value:
    """Whether a step replayed another's generations. Most runs have none, and to ask for each of ten thousand steps
    takes as long as all else."""
    if split != "train" or not there:
        return Value(False)
    return Exists(hits.filter(**{name: OuterRef(name) for name in ("attempt", "step_kind", "step")}))


def build_step_bars(rows: list[tuple[int, int, float | None, int, int]]) -> list[StepBar]:
    """Bars side by side, their heights from the lowest score (or 0) to the highest (or 0)."""
    scores = [score for _, _, score, *_ in rows if score is not None]
    low, high = min([0.0, *scores]), max([0.0, *scores])
    span = high - low or 1.0
    width = 100 / len(rows)
    return [
        StepBar(
            first,
            last,
            score,
            flags or 0,
            round(at * width, 3),
            round(width, 3),
            compute_bar_height(score, low, span),
            reused,
        )
        for at, (first, last, score, flags, reused) in enumerate(rows)
    ]


def compute_bar_height(score: float | None, low: float, span: float) -> float:
    return 0.0 if score is None else round(6 + 94 * (score - low) / span, 2)


def load_step_strip(run: Run, split: str, attempt: Attempt | None = None) -> StepStrip:
    return load_cached_step_strip(run.pk, run.created_at, run.version, split, attempt.pk if attempt else None)
