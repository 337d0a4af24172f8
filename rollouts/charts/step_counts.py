"""What a query finds in each step of a run, stored with the version of the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from time import monotonic
from typing import Final, NamedTuple

import orjson
from django.db.models import Count, Q, Sum
from django.utils import timezone

from rollouts.models import NOT_BLIND, QueryCurve, Run, Step
from rollouts.query import (
    And,
    BodyTerm,
    LoggedKeyTerm,
    MissingTerm,
    Not,
    Or,
    Query,
    QueryNode,
    QueryScope,
    build_condition,
    build_query_condition,
    collect_leaves,
    is_changeable_term,
    list_required_nodes,
    resolve_rescores,
)

FORMAT: Final = 2  # of the stored counts; those of another one are not read
MAX_CHUNK_STEPS: Final = 400
MAX_CHUNK_SAMPLES: Final = 20_000  # counted at once
MAX_CHUNK_BODIES: Final = 5_000  # whose texts are searched at once
MAX_STORED: Final = 200  # queries of a run; the least recently used ones are forgotten


class StepCounts(NamedTuple):
    """`matched` is -1 if the query cannot be answered for the step: no sample in it has the logged key. Scores are
    those of the last samples of trajectories, lengths those of the `with_text` samples whose text was recorded."""

    matched: int
    scored: int = 0
    score_sum: float = 0.0
    with_text: int = 0
    chars_sum: int = 0


UNKNOWN: Final = StepCounts(-1)
Stamp = tuple[int, int, int]  # versions that the counts depend on


@dataclass
class StoredCounts:
    """The counts of the steps that are up to date, by id of the step. `steps` are all steps, newest first. The `query`
    names re-scores by their keys, so a re-score that replaces another one of its name is counted again."""

    run: Run
    query: Query
    digest: str
    steps: Sequence[Step]
    counts: dict[int, StepCounts] = field(default_factory=dict)

    @classmethod
    def load(cls, run: Run, query: Query, split: str, steps: Sequence[Step]) -> StoredCounts:
        """Raises InvalidQueryError."""
        if query.root and steps:
            root = resolve_rescores(query.root, run, NOT_BLIND)
            query = replace(query, root=root, leaves=tuple(collect_leaves(root)))
        digest = blake2b(f"{FORMAT}\n{split}\n{query.root!r}".encode(), digest_size=16).hexdigest()
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
        """Counts missing steps until the deadline, but at least one chunk of them, and stores the counts. Raises
        InvalidQueryError for a logged key that no step has."""
        if missing := [step for step in self.steps if step.pk not in self.counts]:
            for chunk in split_into_chunks(missing, self.max_chunk_samples):
                self.counts.update(self.count(chunk))
                if monotonic() >= deadline:
                    break
            self.store()
        if self.counts.keys() == {step.pk for step in self.steps} and set(self.counts.values()) == {UNKNOWN}:
            newest = next(iter(split_into_chunks(self.steps, self.max_chunk_samples)))
            build_query_condition(self.query, self.build_scope(newest, may_lack_keys=False), None)

    @property
    def max_chunk_samples(self) -> int:
        has_bodies = any(isinstance(leaf, BodyTerm) for leaf in self.query.leaves)
        return MAX_CHUNK_BODIES if has_bodies else MAX_CHUNK_SAMPLES

    def build_scope(self, steps: Sequence[Step], *, may_lack_keys: bool = True) -> QueryScope:
        """By default, a key that none of these steps has is no error: others may have it."""
        ids = [step.pk for step in steps]
        step_id = ids[0] if len(ids) == 1 else None
        return QueryScope(self.run, Step.objects.filter(pk__in=ids), step_id, may_lack_keys=may_lack_keys)

    def count(self, steps: Sequence[Step]) -> dict[int, StepCounts]:
        scope = self.build_scope(steps)
        rows = scope.samples().filter(build_query_condition(self.query, scope, None)).order_by().values("step")
        is_final, has_text = Q(final=True), ~build_condition(MissingTerm("text"), scope)
        sums = rows.annotate(
            matched=Count("pk"),
            scored=Count("score", filter=is_final),
            score_sum=Sum("score", filter=is_final),
            with_text=Count("pk", filter=has_text),
            chars_sum=Sum("chars", filter=has_text),
        )
        counts = {step.pk: StepCounts(0) for step in steps}
        names = ("step", "matched", "scored", "score_sum", "with_text", "chars_sum")
        for pk, matched, scored, score_sum, with_text, chars_sum in sums.values_list(*names):
            counts[pk] = StepCounts(matched, scored, score_sum or 0.0, with_text, chars_sum or 0)
        return counts | dict.fromkeys(self.find_unknown_steps(steps, counts), UNKNOWN)

    def find_unknown_steps(self, steps: Sequence[Step], counts: Mapping[int, StepCounts]) -> set[int]:
        """Returns the ids of the steps in which no sample has the logged keys that the query needs."""
        keys = {leaf.key: leaf for leaf in self.query.leaves if isinstance(leaf, LoggedKeyTerm)}
        required = {node.key for node in list_required_nodes(self.query.root) if isinstance(node, LoggedKeyTerm)}
        lacking: dict[str, set[int]] = {key: set() for key in keys}
        for key, leaf in keys.items():
            # A match has the keys that every match needs, so a step with matches need not be searched for them.
            doubtful = [step for step in steps if key not in required or not counts[step.pk].matched]
            if doubtful:
                scope = self.build_scope(doubtful)
                known = Query(root=replace(leaf, sign="known", text="", number=None))
                samples = scope.samples().filter(build_query_condition(known, scope, None)).order_by()
                found = samples.values_list("step", flat=True).distinct()
                lacking[key] = {step.pk for step in doubtful}.difference(found)
        return combine_lacking_steps(self.query.root, lacking) if self.query.root else set()

    def store(self) -> None:
        stamps = {step.pk: self.stamp(step) for step in self.steps}
        points = orjson.dumps({str(pk): [*stamps[pk], *counts] for pk, counts in self.counts.items()})
        fields = {"points": points, "used_at": timezone.now()}
        QueryCurve.objects.update_or_create(run=self.run, digest=self.digest, defaults=fields)
        kept = QueryCurve.objects.filter(run=self.run).order_by("-used_at").values_list("pk", flat=True)
        QueryCurve.objects.filter(pk__in=list(kept[MAX_STORED : 2 * MAX_STORED])).delete()


def combine_lacking_steps(node: QueryNode, lacking: Mapping[str, set[int]]) -> set[int]:
    """Returns the ids of the steps that lack the logged keys of `node`, from those that lack each key. Of keys that
    `or` joins, a step needs only one: some are renamed in the middle of a run."""
    match node:
        case LoggedKeyTerm(key):
            return lacking[key]
        case Not(part):
            return combine_lacking_steps(part, lacking)
        case And(parts):
            return set[int]().union(*(combine_lacking_steps(part, lacking) for part in parts))
        case Or(parts):
            with_keys = [
                part for part in parts if any(isinstance(leaf, LoggedKeyTerm) for leaf in collect_leaves(part))
            ]
            found = [combine_lacking_steps(part, lacking) for part in with_keys]
            return set.intersection(*found) if found else set()
    return set()


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
