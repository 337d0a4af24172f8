"""Curves over attempts: what a later attempt replaces of an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import or_

import numpy as np
from django.db.models import Exists, Min, OuterRef

from rollouts.metrics.blocks import PointArrays
from rollouts.models import Attempt, MetricRow, Series, Step

AttemptPoints = list[tuple[int, PointArrays]]  # attempt id and its points


@dataclass(frozen=True, slots=True)
class AttemptIndex:
    """The attempts of some runs: (run, key, number) by id, and where the training steps of each start, by step kind, if
    it has metrics: files that are watched beside a trainer's own calls replace no curve."""

    known: dict[int, tuple[int, str, int]]
    starts: dict[tuple[int, str], int]

    @classmethod
    def of(cls, run_ids: Sequence[int]) -> AttemptIndex:
        rows = Attempt.objects.filter(run__in=run_ids).values_list("pk", "run", "key", "number")
        told = (Exists(model.objects.filter(attempt=OuterRef("attempt"))) for model in (Series, MetricRow))
        train = Step.objects.filter(or_(*told), run__in=run_ids, split="train").order_by()
        first = train.values_list("attempt", "step_kind").annotate(Min("step"))
        return cls(
            {pk: (run, key, number) for pk, run, key, number in rows}, {(pk, kind): at for pk, kind, at in first}
        )

    def key(self, pk: int) -> str:
        return self.known[pk][1]

    def number(self, pk: int) -> int:
        return self.known[pk][2]

    def later(self, pk: int) -> list[int]:
        """Attempts of the same run that were launched after this one."""
        run, _, number = self.known[pk]
        return [other for other, (of, _, at) in self.known.items() if of == run and at > number]

    def choose(self, pieces: AttemptPoints, kind: str, attempt: str) -> AttemptPoints:
        """What `attempt` asks for, in order of attempts: `current`, `all` (each by itself) or one attempt's key."""
        pieces = sorted(pieces, key=lambda piece: self.number(piece[0]))
        if attempt == "all":
            return pieces
        if attempt != "current":
            return [piece for piece in pieces if self.key(piece[0]) == attempt]
        return self.current(pieces, kind)

    def current(self, pieces: AttemptPoints, kind: str) -> AttemptPoints:
        """Each attempt up to where a later one starts: with this metric, or with its first training step.

        Both count because a resumed run may validate the step that it was saved at before it trains the next one.
        """
        first = {pk: int(steps[0]) for pk, (steps, _) in pieces if len(steps)}
        shown: AttemptPoints = []
        for pk, (steps, values) in pieces:
            later = self.later(pk)
            cuts = [first[other] for other in later if other in first]
            cuts += [self.starts[other, kind] for other in later if (other, kind) in self.starts]
            end = int(np.searchsorted(steps, min(cuts))) if cuts else len(steps)
            shown.append((pk, (steps[:end], values[:end])))
        return shown
