"""Loads the samples that rows may mean, with their places. Queries are for all rows of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from django.db.models import Count, Q
from django.utils.translation import gettext as _

from rollouts.label_import.rows import SampleClaims
from rollouts.models import Project, Sample, SampleQuerySet, Step

STEPS_PER_QUERY: Final = 40  # SQLite limits the depth of a condition
MAX_CANDIDATES: Final = 2_000  # of one row that is found by text
MAX_REQUEST_CANDIDATES: Final = 100_000  # of all rows together
STEP_COLUMNS: Final = ("pk", "run", "split", "step_kind", "step", "superseded", "attempt__key")

T = TypeVar("T")


class CandidateStep(NamedTuple):
    pk: int
    run: int
    split: str
    step_kind: str
    step: int
    superseded: bool
    attempt: str


@dataclass(frozen=True, slots=True)
class CandidateSample:
    pk: str
    step: CandidateStep
    group: str
    index: int | None
    trajectory: str
    prompt_key: str
    chars: int


@dataclass
class CandidateLoader:
    """`left` candidates may still be read."""

    project: Project
    steps: dict[int, CandidateStep] = field(default_factory=dict)
    left: int = field(default_factory=lambda: MAX_REQUEST_CANDIDATES)

    def load_steps(self, rows: Iterable[tuple[Any, ...]]) -> list[CandidateStep]:
        steps = [CandidateStep(*row) for row in rows]
        self.steps |= {step.pk: step for step in steps}
        return steps

    def select_samples(self, condition: Q) -> SampleQuerySet:
        """Visible samples of the project's runs."""
        samples: SampleQuerySet = Sample.objects.visible().order_by()
        return samples.filter(condition, step__run__project=self.project, step__run__deleted_at=None)

    def load_candidates(self, condition: Q) -> list[CandidateSample]:
        columns = ("pk", "step", "group", "index", "trajectory", "prompt_key", "chars")
        values = list(self.select_samples(condition).values_list(*columns))
        missing = {row[1] for row in values} - self.steps.keys()
        for part in split(sorted(missing), 500):
            self.load_steps(Step.objects.filter(pk__in=part).values_list(*STEP_COLUMNS))
        return [CandidateSample(pk, self.steps[step], *rest) for pk, step, *rest in values]

    def load_counted(
        self, column: str, conditions: Mapping[Any, Q], limits: Mapping[Any, int]
    ) -> tuple[list[CandidateSample], dict[Any, str]]:
        """The candidates of conditions, which are given by the value that they want of a column. They are counted
        first: where there are more than `limits` has for the value, or than the request may read, none are loaded, and
        the second result has the problem."""
        candidates: list[CandidateSample] = []
        problems: dict[Any, str] = {}
        for part in split(sorted(conditions), STEPS_PER_QUERY):
            selected = self.select_samples(Q(**{f"{column}__in": part}) & join(conditions[value] for value in part))
            counts = sorted(selected.values_list(column).annotate(Count("pk")), key=lambda row: (row[1], row[0]))
            small = []
            for value, count in counts:
                if count > limits.get(value, count):
                    problems[value] = describe_too_many_matches()
                elif count > self.left:
                    problems[value] = describe_large_request()
                else:
                    self.left -= count
                    small.append(value)
            if small:
                is_small = Q(**{f"{column}__in": small})
                candidates += self.load_candidates(is_small & join(conditions[value] for value in small))
        return candidates, problems


class CandidateIndex:
    """Samples by step, and by group and index in it."""

    def __init__(self, candidates: Iterable[CandidateSample]) -> None:
        self.by_look: dict[tuple[Any, ...], list[CandidateSample]] = defaultdict(list)
        for row in candidates:
            for look in ((), ("group", row.group), ("index", row.index), ("key", row.prompt_key)):
                self.by_look[(row.step.pk, *look)].append(row)

    def find(self, step: int, claims: SampleClaims) -> Iterator[CandidateSample]:
        look: tuple[Any, ...] = ()
        if claims.group:
            look = ("group", claims.group)
        elif claims.prompt_key:
            look = ("key", claims.prompt_key)
        elif claims.index is not None:
            look = ("index", claims.index)
        return (row for row in self.by_look.get((step, *look), ()) if is_place(claims, row))


def split(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def build_step_condition(step: int, rows: Sequence[SampleClaims]) -> Q:
    """The samples of a step that these rows may mean."""
    condition = Q(step=step)
    if all(claims.group for claims in rows):
        return condition & Q(group__in={claims.group for claims in rows})
    if all(claims.trajectory for claims in rows):
        return condition & Q(trajectory__in={claims.trajectory for claims in rows})
    if all(claims.prompt_key for claims in rows):
        return condition & Q(prompt_key__in={claims.prompt_key for claims in rows})
    if all(claims.index is not None for claims in rows):
        return condition & Q(index__in={claims.index for claims in rows})
    return condition


def build_text_condition(prompt_key: str, rows: Sequence[Mapping[str, Any]]) -> Q:
    """The samples with a prompt that these rows may mean, by what all of them say."""
    names = set.intersection(*map(set, rows))
    return Q(prompt_key=prompt_key, **{f"{name}__in": {row[name] for row in rows} for name in sorted(names)})


def join(conditions: Iterable[Q]) -> Q:
    return Q(*conditions, _connector=Q.OR)


def is_step(claims: SampleClaims, step: CandidateStep) -> bool:
    claimed = ((claims.split, step.split), (claims.step_kind, step.step_kind))
    return all(not claim or claim == value for claim, value in claimed) and claims.step in (None, step.step)


def is_place(claims: SampleClaims, row: CandidateSample) -> bool:
    """Whether the sample is at the place that the row says."""
    named = ((claims.group, row.group), (claims.trajectory, row.trajectory), (claims.prompt_key, row.prompt_key))
    same = all(not claim or claim == value for claim, value in named)
    return same and claims.index in (None, row.index) and is_step(claims, row.step)


def describe_too_many_matches() -> str:
    message = _("More than {count} samples match. Add what tells them apart: run, split, step, group or index.")
    return message.format(count=f"{MAX_CANDIDATES:,}")


def describe_large_request() -> str:
    message = _(
        "The rows that are imported at once match more than {count} samples. Import fewer rows at once, or add what "
        "tells the samples apart: run, split, step, group or index."
    )
    return message.format(count=f"{MAX_REQUEST_CANDIDATES:,}")
