"""Compares steps over the prompts that all of them have. Differences are relative to the first step, A."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.utils.translation import gettext as _

from rollouts.compare import bootstrap, pairing
from rollouts.compare.pairing import ComparedPrompt, compute_mean
from rollouts.compare.targets import TARGET_LETTERS, ComparisonTarget, load_rows
from rollouts.errors import TooLargeError
from rollouts.lib import CacheSize, cached, compute_tolerance

MAX_SAMPLES = 50_000  # in all steps together
MAX_SOURCES = 30
NONE_CORRECT = "none"
ALL_SOURCES = ""

Measure = Callable[[ComparedPrompt], float | None]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """One prompt in every step. `solved_by` has the letters of the steps that solved it, `none`, or is empty if a step
    was not evaluated. `change` is the largest difference between the mean score of A and of another step."""

    prompts: tuple[ComparedPrompt, ...]
    solved_by: str
    change: float

    @property
    def source(self) -> str:
        return next((prompt.source for prompt in self.prompts if prompt.source), "")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A pair in a list, or a prompt that some steps do not have (None)."""

    prompts: tuple[ComparedPrompt | None, ...]
    solved_by: str = ""
    change: float | None = None

    @property
    def ground_truths(self) -> list[str]:
        """The starts of the ground truths. There are several if the same prompt text has different ones."""
        return sorted(set().union(*(prompt.ground_truths for prompt in self.prompts if prompt)))


@dataclass(frozen=True, slots=True)
class ComparedMean:
    """A mean over prompts, its difference to A over the same prompts, and the 95 % interval of the difference."""

    value: float | None
    change: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def is_significant(self) -> bool:
        if self.interval is None or self.value is None:
            return False
        noise = compute_tolerance(self.value)  # trainers log float32: 1.1 may be 1.10000002
        return self.interval[0] > noise or self.interval[1] < -noise


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """The statistics of one data source (or `ALL_SOURCES`): for each measure one mean per step. Every prompt has at
    least `k` evaluated answers in every step."""

    name: str
    prompts: int
    k: int
    statistics: dict[str, list[ComparedMean]]


@dataclass(frozen=True, slots=True)
class Comparison:
    pairs: list[ComparedPair]
    outcomes: dict[str, int]
    sources: list[SourceComparison]
    unpaired_prompts: list[list[ComparedPrompt]]
    task_pair_count: int
    unit: str
    truncation_inferred: bool

    @property
    def unevaluated_count(self) -> int:
        return sum(not pair.solved_by for pair in self.pairs)

    def list_rows(self, only: str = "") -> list[ComparisonRow]:
        """Returns rows, largest change first. `only` is a key of `outcomes`, `unjudged`, `unpaired`, or empty."""
        if only == "unpaired":
            return self.list_unpaired_rows()
        solved_by = "" if only == "unjudged" else only
        pairs = [pair for pair in self.pairs if not only or pair.solved_by == solved_by]
        return [ComparisonRow(pair.prompts, pair.solved_by, pair.change) for pair in pairs]

    def list_unpaired_rows(self) -> list[ComparisonRow]:
        """Returns the prompts that some steps do not have, those of A first."""
        rows: dict[str, list[ComparedPrompt | None]] = defaultdict(lambda: [None] * len(self.unpaired_prompts))
        for at, prompts in enumerate(self.unpaired_prompts):
            for prompt in prompts:
                rows[prompt.key][at] = prompt
        return [ComparisonRow(tuple(prompts)) for prompts in rows.values()]


def compare_steps(targets: Sequence[ComparisonTarget]) -> Comparison:
    """Returns the comparison, computed once per version of the steps. Raises TooLargeError, NotFoundError and
    StorageUnavailableError."""
    total = sum(target.samples for target in targets)
    if total > MAX_SAMPLES:
        message = _("These steps have {count} samples. You can compare at most {limit} at once.")
        raise TooLargeError(message.format(count=f"{total:,}", limit=f"{MAX_SAMPLES:,}"), "of")
    steps = ((target.step, target.run) for target in targets)
    return build_comparison(tuple((step.pk, step.created_at, step.version, run.version) for step, run in steps))


def build_empty_comparison(sides: int) -> Comparison:
    """A comparison without pairs, for steps that are too large to be paired."""
    return Comparison([], {}, [SourceComparison(ALL_SOURCES, 0, 0, {})], [[] for _ in range(sides)], 0, "chars", False)


@cached(CacheSize.COMPARISONS)
def build_comparison(steps: tuple[tuple[int, datetime, int, int], ...]) -> Comparison:
    """`steps` are ids, with creation times and versions that identify their content."""
    result = pairing.pair_prompts(load_rows([pk for pk, *_ in steps]))
    pairs = sorted(map(build_pair, result.pairs), key=lambda pair: (-abs(pair.change), pair.prompts[0].key))
    prompts = [prompt for pair in result.pairs for prompt in pair]
    unit = "tokens" if prompts and all(None not in prompt.tokens for prompt in prompts) else "chars"
    return Comparison(
        pairs,
        dict(Counter(pair.solved_by for pair in pairs if pair.solved_by)),
        compare_by_source(pairs, unit),
        result.unpaired,
        result.task_pair_count,
        unit,
        any(prompt.truncation_inferred for prompt in prompts),
    )


def build_pair(prompts: tuple[ComparedPrompt, ...]) -> ComparedPair:
    solved = [prompt.solved for prompt in prompts]
    letters = "".join(letter for letter, is_solved in zip(TARGET_LETTERS, solved, strict=False) if is_solved)
    first, *others = (prompt.score for prompt in prompts)
    changes = [score - first for score in others if score is not None and first is not None]
    solved_by = "" if None in solved else letters or NONE_CORRECT
    return ComparedPair(prompts, solved_by, max(changes, key=abs, default=0.0))


def compare_by_source(pairs: Sequence[ComparedPair], unit: str) -> list[SourceComparison]:
    """Returns all sources together, then each data source if there are several, the largest first."""
    names = Counter(pair.source for pair in pairs)
    largest = [name for name, _ in names.most_common(MAX_SOURCES)] if len(names) > 1 else []
    parts = [(name, [pair for pair in pairs if pair.source == name]) for name in largest]
    return [compare_source(name, part, unit) for name, part in [(ALL_SOURCES, pairs), *parts]]


def compare_source(name: str, pairs: Sequence[ComparedPair], unit: str) -> SourceComparison:
    counts = (prompt.evaluated_count for pair in pairs for prompt in pair.prompts)
    k = min(filter(None, counts), default=0)
    measures: dict[str, Measure] = {
        "score": lambda prompt: prompt.score,
        "pass@1": lambda prompt: prompt.accuracy,
        "pass@k": lambda prompt: prompt.compute_pass_at_k(k) if k > 1 else None,
        "maj@n": lambda prompt: prompt.majority_accuracy if k > 1 else None,
        "length": lambda prompt: compute_mean(prompt.tokens if unit == "tokens" else prompt.chars),
        "truncated": lambda prompt: compute_mean(prompt.truncated),
    }
    tables = {measure: build_table(pairs, compute) for measure, compute in measures.items()}
    changes = np.hstack([values[:, 1:] - values[:, :1] for values in tables.values()])
    intervals = iter(bootstrap.compute_intervals(changes))
    statistics = {measure: list(build_means(values, intervals)) for measure, values in tables.items()}
    return SourceComparison(name, len(pairs), k, statistics)


def build_table(pairs: Sequence[ComparedPair], measure: Measure) -> bootstrap.FloatArray:
    """Returns the values, shape (pairs, steps). A row is NaN if the measure is unknown in a step."""
    if not pairs:
        return np.empty((0, 1))
    values = np.array([[measure(prompt) for prompt in pair.prompts] for pair in pairs], np.float64)
    values[np.isnan(values).any(axis=1)] = np.nan
    return values


def build_means(
    values: bootstrap.FloatArray, intervals: Iterator[tuple[float, float] | None]
) -> Iterator[ComparedMean]:
    """Yields the mean of each step; all but the first take one of the `intervals`."""
    known = values[np.isfinite(values).all(axis=1)]
    means: list[float | None] = known.mean(axis=0).tolist() if len(known) else [None] * values.shape[1]
    first, *others = means
    yield ComparedMean(first)
    for mean, interval in zip(others, intervals, strict=False):
        yield ComparedMean(mean) if mean is None or first is None else ComparedMean(mean, mean - first, interval)
