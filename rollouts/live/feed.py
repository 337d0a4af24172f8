"""The live feed: the newest steps of many runs, each with the step before it and its worst samples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from rollouts.lib import CacheSize, cached_newest
from rollouts.models import Attempt, Run, Sample, Step, StepTotals, add_steps, join_concurrent_steps

MAX_WORST_PER_STEP: Final = 3


@dataclass(frozen=True, slots=True)
class TruncatedShare:
    """The share of truncated samples in a step, 0 to 1. `inferred`: the run does not record why generation ended."""

    share: float
    inferred: bool


@dataclass(frozen=True, slots=True)
class FeedItem:
    """A step, its samples with the lowest scores, and the numbers of the step and of the previous one of its run, with
    those of attempts that run at the same time."""

    step: Step
    totals: StepTotals
    previous: StepTotals | None
    worst: tuple[Sample, ...]

    @property
    def truncated(self) -> TruncatedShare | None:
        return compute_truncated_share(self.totals)

    @property
    def score_change(self) -> float | None:
        if self.previous is None or self.totals.score_mean is None or self.previous.score_mean is None:
            return None
        return self.totals.score_mean - self.previous.score_mean

    @property
    def truncated_change(self) -> float | None:
        """The change of the share. None if one is unknown, or only one of the two is inferred."""
        current, earlier = self.truncated, compute_truncated_share(self.previous) if self.previous else None
        return current.share - earlier.share if current and earlier and current.inferred == earlier.inferred else None


def compute_truncated_share(step: StepTotals) -> TruncatedShare | None:
    if not step.samples:
        return None
    if step.truncated is not None:
        return TruncatedShare(step.truncated / step.samples, inferred=False)
    inferred_count = step.facets.get("trunc?")
    return TruncatedShare(inferred_count / step.samples, inferred=True) if inferred_count else None


def load_feed(runs: QuerySet[Run], *, split: str = "", before: int | None = None, limit: int = 30) -> list[FeedItem]:
    """Returns the latest steps, newest first. With `before`, the id of a step, only those that arrived before it."""
    steps = Step.objects.current().filter(run__in=runs, samples__gt=0)
    if split:
        steps = steps.filter(split=split)
    if cursor := Step.objects.filter(pk=before).first() if before else None:
        same_time = Q(created_at=cursor.created_at)
        older = Q(step__lt=cursor.step) | Q(step=cursor.step, pk__lt=cursor.pk)
        steps = steps.filter(Q(created_at__lt=cursor.created_at) | same_time & older)
    same_series = {name: OuterRef(name) for name in ("run", "split", "step_kind")}
    if Attempt.objects.exclude(concurrent_with=None).exists():  # the condition takes time for each step
        first = Step.objects.current().filter(
            pk__lt=OuterRef("pk"), step=OuterRef("step"), samples__gt=0, **same_series
        )
        steps = steps.exclude(~Q(attempt__concurrent_with=None) & Exists(first))
    earlier = Step.objects.current().filter(step__lt=OuterRef("step"), samples__gt=0, **same_series).order_by("-step")
    newest = steps.annotate(earlier=Subquery(earlier.values("pk")[:1])).order_by("-created_at", "-step", "-pk")
    pairs = list(newest.values_list("pk", "earlier")[:limit])
    by_id = Step.objects.select_related("run__project", "attempt").in_bulk({pk for pair in pairs for pk in pair if pk})
    joined = join_concurrent_steps(by_id.values())
    return [
        FeedItem(
            by_id[pk], add_steps(joined[pk]), add_steps(joined[previous]) if previous else None, find_worst(joined[pk])
        )
        for pk, previous in pairs
    ]


def find_worst(steps: Sequence[Step]) -> tuple[Sample, ...]:
    """Returns the samples with the lowest scores and different texts, of the rows of one step."""
    worst = [sample for step in steps for sample in find_worst_samples(step.pk, step.created_at, step.version)]
    return select_different_texts(sorted(worst, key=lambda sample: (sample.score, sample.pk)))


@cached_newest(CacheSize.WORST_SAMPLES)
def find_worst_samples(step_id: int, created_at: datetime, version: int) -> tuple[Sample, ...]:
    """Returns the samples with the lowest scores and different texts. `version` identifies the content of the step."""
    scored = Sample.objects.visible().filter(step=step_id, final=True, score__isnull=False)
    return select_different_texts(scored.order_by("score", "pk")[: MAX_WORST_PER_STEP * 8])


def select_different_texts(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    samples_by_text: dict[str, Sample] = {}
    for sample in samples:
        samples_by_text.setdefault(sample.tail, sample)
    return tuple(samples_by_text.values())[:MAX_WORST_PER_STEP]
