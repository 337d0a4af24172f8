"""What a query finds in each step of a run, stored with the version of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from time import monotonic
from typing import Final, NamedTuple

import orjson
from django.db.models import Count, Sum
from django.utils import timezone

from rollouts.models import QueryCurve, Run, Step
from rollouts.query import BodyTerm, InvalidQueryError, Query, QueryScope, build_query_condition, is_changeable_term

MAX_CHUNK_STEPS: Final = 400
MAX_CHUNK_SAMPLES: Final = 20_000  # counted at once
MAX_CHUNK_BODIES: Final = 5_000  # whose texts are searched at once
MAX_STORED: Final = 200  # queries of a run; the least recently used ones are forgotten


class StepCounts(NamedTuple):
    """`matched` is -1 if the query cannot be answered for the step: no sample in it has the logged key."""

    matched: int
    scored: int = 0
    score_sum: float = 0.0
    chars_sum: int = 0


UNKNOWN: Final = StepCounts(-1)
Stamp = tuple[int, int, int]  # versions that the counts depend on


@dataclass
class StoredCounts:
    """The counts of the steps that are up to date, by id of the step. `steps` are all steps, newest first."""

    run: Run
    query: Query
    digest: str
    steps: Sequence[Step]
    counts: dict[int, StepCounts] = field(default_factory=dict)

    @classmethod
    def load(cls, run: Run, query: Query, split: str, steps: Sequence[Step]) -> StoredCounts:
        digest = blake2b(f"{split}\n{query.root!r}".encode(), digest_size=16).hexdigest()
        result = cls(run, query, digest, steps)
        row = QueryCurve.objects.filter(run=run, digest=digest).values_list("points", flat=True).first()
        stored = orjson.loads(bytes(row)) if row else {}
        for step in steps:
            saved = stored.get(str(step.pk))
            if saved and tuple(saved[:3]) == result.stamp(step):
                result.counts[step.pk] = StepCounts(*saved[3:])
        return result

    def stamp(self, step: Step) -> Stamp:
        """Flags, pins and replays are not a part of the step, so they change with any version of the run."""
        changeable = any(is_changeable_term(leaf) for leaf in self.query.leaves)
        return step.version, step.rule, self.run.version if changeable else 0

    def update(self, deadline: float) -> None:
        """Counts missing steps until the deadline, but at least one chunk of them, and stores the counts."""
        missing = [step for step in self.steps if step.pk not in self.counts]
        if not missing:
            return
        has_bodies = any(isinstance(leaf, BodyTerm) for leaf in self.query.leaves)
        for chunk in split_into_chunks(missing, MAX_CHUNK_BODIES if has_bodies else MAX_CHUNK_SAMPLES):
            self.counts.update(self.count(chunk))
            if monotonic() >= deadline:
                break
        self.store()

    def count(self, steps: Sequence[Step]) -> dict[int, StepCounts]:
        ids = [step.pk for step in steps]
        scope = QueryScope(self.run, Step.objects.filter(pk__in=ids), ids[0] if len(ids) == 1 else None)
        try:
            condition = build_query_condition(self.query, scope, None)
        except InvalidQueryError:  # a logged key that no sample of these steps has
            if not self.counts:
                raise
            return dict.fromkeys(ids, UNKNOWN)
        rows = scope.samples().filter(condition).order_by().values("step")
        sums = rows.annotate(n=Count("pk"), scored=Count("score"), score=Sum("score"), chars=Sum("chars"))
        found = {
            pk: StepCounts(n, scored, score or 0.0, chars or 0)
            for pk, n, scored, score, chars in sums.values_list("step", "n", "scored", "score", "chars")
        }
        return {pk: found.get(pk, StepCounts(0)) for pk in ids}

    def store(self) -> None:
        stamps = {step.pk: self.stamp(step) for step in self.steps}
        points = orjson.dumps({str(pk): [*stamps[pk], *counts] for pk, counts in self.counts.items()})
        fields = {"points": points, "used_at": timezone.now()}
        QueryCurve.objects.update_or_create(run=self.run, digest=self.digest, defaults=fields)
        kept = QueryCurve.objects.filter(run=self.run).order_by("-used_at").values_list("pk", flat=True)
        QueryCurve.objects.filter(pk__in=list(kept[MAX_STORED : 2 * MAX_STORED])).delete()


def split_into_chunks(steps: Sequence[Step], max_samples: int) -> Iterable[list[Step]]:
    """Chunks with at least one step and otherwise at most `max_samples` samples."""
    chunk: list[Step] = []
    samples = 0
    for step in steps:
        if chunk and (samples + step.samples > max_samples or len(chunk) == MAX_CHUNK_STEPS):
            yield chunk
            chunk, samples = [], 0
        chunk.append(step)
        samples += step.samples
    if chunk:
        yield chunk
