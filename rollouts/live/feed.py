"""What has just arrived: the newest steps of many runs, each beside the one before it, with its worst samples."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import OuterRef, Q, QuerySet, Subquery

from rollouts.lib import MAX_WORST_SAMPLES, cached
from rollouts.models import Run, Sample, Step

WORST: Final = 3


@dataclass(frozen=True, slots=True)
class Truncated:
    """Share of a step's samples, of 1. `inferred`: the run does not record why generation ended."""

    share: float
    inferred: bool


@dataclass(frozen=True, slots=True)
class FeedItem:
    """A step, the one before it in its run, and its samples with the lowest scores."""

    step: Step
    before: Step | None
    worst: tuple[Sample, ...]

    @property
    def truncated(self) -> Truncated | None:
        return truncation(self.step)

    @property
    def more_score(self) -> float | None:
        if self.before is None or self.step.score_mean is None or self.before.score_mean is None:
            return None
        return float(self.step.score_mean - self.before.score_mean)

    @property
    def more_truncated(self) -> float | None:
        """In shares of 1; None where one of the two is not known by the same means."""
        now, then = self.truncated, truncation(self.before) if self.before else None
        return now.share - then.share if now and then and now.inferred == then.inferred else None


def truncation(step: Step) -> Truncated | None:
    if not step.samples:
        return None
    if step.truncated is not None:
        return Truncated(step.truncated / step.samples, inferred=False)
    guessed = step.facets.get("trunc?")
    return Truncated(guessed / step.samples, inferred=True) if guessed else None


def load_feed(runs: QuerySet[Run], *, split: str = "", before: int | None = None, most: int = 30) -> list[FeedItem]:
    """The steps that arrived last, newest first; `before` is the id of a step that they came before."""
    steps = Step.objects.current().filter(run__in=runs, samples__gt=0)
    if split:
        steps = steps.filter(split=split)
    if last := Step.objects.filter(pk=before).first() if before else None:
        steps = steps.filter(Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, pk__lt=last.pk))
    same = {name: OuterRef(name) for name in ("run", "split", "step_kind")}
    earlier = Step.objects.current().filter(step__lt=OuterRef("step"), samples__gt=0, **same).order_by("-step")
    told = steps.annotate(earlier=Subquery(earlier.values("pk")[:1])).order_by("-created_at", "-pk")
    pairs = list(told.values_list("pk", "earlier")[:most])
    known = Step.objects.select_related("run__project").in_bulk({pk for pair in pairs for pk in pair if pk})
    found = [(known[pk], known.get(before)) for pk, before in pairs]
    return [FeedItem(one, before, worst(one.pk, one.created_at, one.version)) for one, before in found]


@cached(MAX_WORST_SAMPLES)
def worst(step_id: int, born: datetime, version: int) -> tuple[Sample, ...]:
    """The samples with the lowest scores, each of another text if there are; `version` names the step's content."""
    scored = Sample.objects.filter(step=step_id, visible=True, final=True, score__isnull=False)
    found: dict[str, Sample] = {}
    for sample in scored.order_by("score", "pk")[: WORST * 8]:
        found.setdefault(sample.tail, sample)
    return tuple(found.values())[:WORST]
