"""Selects the points of curves by attempt: a later attempt replaces the end of an earlier one."""

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
    """The attempts of some runs: (run id, key, number) by attempt id, and the first training step by attempt id and
    step kind. Attempts without metrics have no first step: watched files do not replace the curves of a trainer.
    `groups`: the first of the attempts that run at the same time, by attempt id."""

    known: dict[int, tuple[int, str, int]]
    starts: dict[tuple[int, str], int]
    groups: dict[int, int]

    @classmethod
    def load(cls, run_ids: Sequence[int]) -> AttemptIndex:
        attempts = Attempt.objects.filter(run__in=run_ids)
        rows = list(attempts.values_list("pk", "run", "key", "number", "concurrent_with"))
        has_metrics = (Exists(model.objects.filter(attempt=OuterRef("attempt"))) for model in (Series, MetricRow))
        train = Step.objects.filter(or_(*has_metrics), run__in=run_ids, split="train").order_by()
        starts = train.values_list("attempt", "step_kind").annotate(Min("step"))
        known = {pk: (run, key, number) for pk, run, key, number, _ in rows}
        groups = {pk: first for pk, *_, first in rows if first is not None}
        return cls(known, {(pk, kind): step for pk, kind, step in starts}, groups)

    def key(self, pk: int) -> str:
        return self.known[pk][1]

    def number(self, pk: int) -> int:
        return self.known[pk][2]

    def select(self, pieces: AttemptPoints, kind: str, attempt: str) -> AttemptPoints:
        """Returns the points of `attempt`, ordered by attempt: `current`, `all` (each attempt by itself) or a key."""
        pieces = sorted(pieces, key=lambda piece: self.number(piece[0]))
        if attempt == "all":
            return pieces
        if attempt != "current":
            return [piece for piece in pieces if self.key(piece[0]) == attempt]
        return self.concatenate(pieces, kind)

    def concatenate(self, pieces: AttemptPoints, kind: str) -> AttemptPoints:
        """Cuts each attempt where a later one starts: with this metric, or with its first training step.

        Both count because a resumed run may evaluate the step that it was saved at before it trains the next one.
        Attempts that run at the same time do not cut each other.
        """
        first = {pk: int(steps[0]) for pk, (steps, _) in pieces if len(steps)}
        result: AttemptPoints = []
        for pk, (steps, values) in pieces:
            run, _, number = self.known[pk]
            later = [
                other
                for other, (of, _, at) in self.known.items()
                if of == run and at > number and (pk not in self.groups or self.groups[pk] != self.groups.get(other))
            ]
            cuts = [first[other] for other in later if other in first]
            cuts += [self.starts[other, kind] for other in later if (other, kind) in self.starts]
            end = int(np.searchsorted(steps, min(cuts))) if cuts else len(steps)
            result.append((pk, (steps[:end], values[:end])))
        return result
