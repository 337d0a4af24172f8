"""The step strip of a run's pages: bars of mean scores, with marks for flags and replays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import Avg, Count, Exists, F, IntegerField, Max, Min, OuterRef, Q, Sum, Value
from django.db.models.functions import Cast

from dashboard.pages.common.step_scale import StepScale, space_ticks
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.lib import CacheSize, cached_newest
from rollouts.models import WEIGHTED_SCORE, Attempt, Replay, Run, Step

MAX_STRIP_BARS = 120


@dataclass(frozen=True, slots=True)
class StepBar:
    """One step, or neighbouring ones that are merged; `replayed` counts the replayed steps. `x width height y` are in
    percent."""

    first: int
    last: int
    score: float | None
    flags: int
    x: float
    width: float
    height: float
    replayed: int = 0

    @property
    def y(self) -> float:
        return round(100 - self.height, 2)

    def contains(self, step: int | None) -> bool:
        return step is not None and self.first <= step <= self.last


@dataclass(frozen=True, slots=True)
class StepStrip:
    """`last_samples` are the samples of the last step."""

    split: str
    bars: tuple[StepBar, ...]
    count: int
    last: int | None
    splits: tuple[str, ...]
    last_samples: int = 0

    @property
    def span(self) -> str:
        """The steps for "step 58 of …": the last number; also the first one if the last is not the number of steps."""
        first = self.bars[0].first
        return str(self.last) if self.count == 1 or (first, self.count) == (1, self.last) else f"{first}–{self.last}"

    def ticks(self) -> list[tuple[float, int]]:
        """About eight labels: (x in percent, step)."""
        every = max(1, -(-len(self.bars) // 8))
        return space_ticks([(round(bar.x + bar.width / 2, 2), bar.last) for bar in self.bars[::every]])

    def list_steps(self) -> list[int]:
        """The first and the last step of each bar."""
        return sorted({step for bar in self.bars for step in (bar.first, bar.last)})

    def place_on(self, scale: StepScale, *, with_replays: bool = True) -> StepStrip:
        """Returns the strip with its bars where `scale` has their steps. On a page that draws the replayed steps in a
        strip of their own, the bars have no mark for them."""
        gap = scale.find_gap_of(self.list_steps())
        boxes = [scale.box(bar.first, bar.last, gap) for bar in self.bars]
        bars = (
            replace(bar, x=x, width=width, replayed=bar.replayed if with_replays else 0)
            for bar, (x, width) in zip(self.bars, boxes, strict=True)
        )
        return replace(self, bars=tuple(bars))


@cached_newest(CacheSize.STEP_STRIPS)
def load_step_kinds(run_id: int, born: datetime, version: int) -> dict[str, str]:
    """{split: the kind of step that pages show}, train first. Asynchronous runs may count updates and batches of
    prompts; pages show the updates."""
    kinds = set(Step.objects.filter(run_id=run_id).order_by().values_list("split", "step_kind").distinct())
    splits = {split for split, _kind in kinds}
    return {split: next(kind for kind in STEP_KINDS if (split, kind) in kinds) for split in SPLITS if split in splits}


def find_step_kind(run: Run, split: str) -> str:
    """The kind of step that pages show; empty if the split has no steps."""
    return load_step_kinds(run.pk, run.created_at, run.version).get(split, "")


def find_default_split(run: Run) -> str:
    return next(iter(load_step_kinds(run.pk, run.created_at, run.version)), "train")


def build_split_param(run: Run, split: str) -> str:
    """The parameter `split` of a link: empty for the default of the run's pages."""
    return "" if split == find_default_split(run) else split


def load_step_strip(run: Run, split: str, attempt: Attempt | None = None) -> StepStrip:
    return load_cached_step_strip(run.pk, run.created_at, run.version, split, attempt.pk if attempt else None)


@cached_newest(CacheSize.STEP_STRIPS)
def load_cached_step_strip(
    run_id: int, born: datetime, version: int, split: str, attempt_id: int | None = None
) -> StepStrip:
    """The version rises with every visible change, so it names the content."""
    kinds = load_step_kinds(run_id, born, version)
    steps = Step.objects.filter(run_id=run_id, split=split, step_kind=kinds.get(split, ""))
    steps = steps.filter(attempt=attempt_id) if attempt_id else steps.current()
    hits = Replay.objects.filter(outcome="hit", run=run_id)
    values: dict[str, Any] = {"low": Min("step"), "high": Max("step"), "count": Count("pk"), "replays": Exists(hits)}
    values["concurrent"] = Exists(Attempt.objects.filter(run=run_id, concurrent_with__isnull=False))
    span: Any = next(iter(steps.order_by().values("run").annotate(**values)), None)
    if span is None:
        return StepStrip(split, (), 0, None, tuple(kinds))
    bucket: Any = F("step")
    if span["count"] > MAX_STRIP_BARS:
        position = (bucket - Value(span["low"])) * MAX_STRIP_BARS / Value(span["high"] - span["low"] + 1)
        bucket = Cast(position, IntegerField())
    is_replayed: Any = Value(False)
    if split == "train" and span["replays"]:  # a subquery for each step takes as long as all else
        is_replayed = Exists(hits.filter(**{name: OuterRef(name) for name in ("attempt", "step_kind", "step")}))
    mean_score = WEIGHTED_SCORE if span["concurrent"] else Avg("score_mean")
    rows = (
        steps.annotate(bucket=bucket, is_replayed=is_replayed)
        .values("bucket")
        .annotate(
            first=Min("step"), last=Max("step"), score=mean_score, marks=Sum("flags"),
            replayed=Count("pk", filter=Q(is_replayed=True)), last_samples=Sum("samples", filter=Q(step=span["high"])),
            count=Count("step", distinct=span["concurrent"]),
        )
        .order_by("bucket")
        .values_list("first", "last", "score", "marks", "replayed", "last_samples", "count")
    )  # fmt: skip
    found = list(rows)
    bars = tuple(build_step_bars([row[:-2] for row in found]))
    return StepStrip(split, bars, sum(row[-1] for row in found), span["high"], tuple(kinds), found[-1][-2] or 0)


def build_step_bars(rows: list[tuple[int, int, float | None, int | None, int]]) -> list[StepBar]:
    """From (first step, last step, score, flags, replayed steps); heights from the lowest score, or 0, to the highest,
    or 0."""
    scores = [score for _first, _last, score, *_ in rows if score is not None]
    low, high = min([0.0, *scores]), max([0.0, *scores])
    width = 100 / len(rows)
    bars = []
    for at, (first, last, score, flags, replayed) in enumerate(rows):
        height = 0.0 if score is None else round(6 + 94 * (score - low) / (high - low or 1.0), 2)
        bars.append(StepBar(first, last, score, flags or 0, round(at * width, 3), round(width, 3), height, replayed))
    return bars
