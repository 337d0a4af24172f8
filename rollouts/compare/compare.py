"""Compares cells over the prompts that all of them answered; differences are against the first, A."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from django.utils.translation import gettext as _

from rollouts.compare import bootstrap, pairing
from rollouts.compare.pairing import ComparedPrompt
from rollouts.compare.targets import TARGET_LETTERS, ComparisonTarget
from rollouts.errors import NotFoundError, TooLargeError
from rollouts.lib import MAX_COMPARISONS, cached
from rollouts.models import Step

MOST_SAMPLES = 50_000  # in all cells together
MOST_SOURCES = 30
NONE_CORRECT = "none"
EVERY = ""  # the row over all data sources


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """One prompt in every cell. `right`: the letters of the cells that solved it, `none`, or empty where some cell has
    no verdict. `change`: the widest difference between the mean score of A and another cell's."""

    prompts: tuple[ComparedPrompt, ...]
    solved_by: str
    change: float

    @property
    def source(self) -> str:
        return next((prompt.source for prompt in self.prompts if prompt.source), "")


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """A pair as lists show it, or a prompt that some cell lacks (None there)."""

    prompts: tuple[ComparedPrompt | None, ...]
    solved_by: str = ""
    change: float | None = None

    @property
    def ground_truths(self) -> list[str]:
        """Heads of the ground truths; several where the same text is asked with different ones."""
        return sorted(set().union(*(prompt.ground_truths for prompt in self.prompts if prompt)))


@dataclass(frozen=True, slots=True)
class ComparedMean:
    """The mean over prompts, its difference to A's over the same prompts, and the 95 % interval of that."""

    value: float | None
    change: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def is_significant(self) -> bool:
        """Is there a difference, as far as these prompts can tell?"""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True, slots=True)
class SourceComparison:
    """What was measured for one data source (`EVERY` for all); `figures` by name, one per cell. `k` is the number of
    judged answers that every prompt of it has in every cell."""

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
    by_task: int
    unit: str
    truncation_inferred: bool

    @property
    def unevaluated_count(self) -> int:
        return sum(not pair.solved_by for pair in self.pairs)

    def list_rows(self, only: str = "") -> list[ComparisonRow]:
        """Those with the widest change first. `only`: a key of `outcomes`, `unjudged`, or `unpaired`; empty for all
        pairs."""
        if only == "unpaired":
            return self.list_unpaired_rows()
        wanted = "" if only == "unjudged" else only
        return [
            ComparisonRow(pair.prompts, pair.solved_by, pair.change)
            for pair in self.pairs
            if not only or pair.solved_by == wanted
        ]

    def list_unpaired_rows(self) -> list[ComparisonRow]:
        """Prompts that some cell lacks, those of A first."""
        found: dict[str, list[ComparedPrompt | None]] = defaultdict(lambda: [None] * len(self.unpaired_prompts))
        for at, prompts in enumerate(self.unpaired_prompts):
            for prompt in prompts:
                found[prompt.key][at] = prompt
        return [ComparisonRow(tuple(prompts)) for prompts in found.values()]


def compare_steps(found: Sequence[ComparisonTarget]) -> Comparison:
    """Computed once per state of the steps. Raises TooLarge, NotThere, StorageUnavailable."""
    total = sum(cell.step.samples for cell in found)
    if total > MOST_SAMPLES:
        said = _("These steps have {count} samples. You can compare at most {most} at once.")
        raise TooLargeError(said.format(count=f"{total:,}", most=f"{MOST_SAMPLES:,}"), "of")
    return compared(tuple((cell.step.pk, cell.step.created_at, cell.step.version, cell.run.version) for cell in found))


@cached(MAX_COMPARISONS)
def compared(steps: tuple[tuple[int, datetime, int, int], ...]) -> Comparison:
    """The versions name the content. Raises NotThere for a step that went after it had been named."""
    rows = {step.pk: step for step in Step.objects.filter(pk__in=[pk for pk, *_ in steps])}
    if len(rows) < len({pk for pk, *_ in steps}):
        raise NotFoundError(_("One of these steps was just deleted. Reload the page."), "of")
    found = pairing.pair_prompts([rows[pk] for pk, *_ in steps])
    pairs = sorted(map(paired, found.pairs), key=lambda pair: (-abs(pair.change), pair.prompts[0].key))
    prompts = [prompt for pair in found.pairs for prompt in pair]
    told = bool(prompts) and all(None not in prompt.tokens for prompt in prompts)
    return Comparison(
        pairs,
        dict(Counter(pair.solved_by for pair in pairs if pair.solved_by)),
        by_source(pairs, "tokens" if told else "chars"),
        found.unpaired,
        found.by_task,
        "tokens" if told else "chars",
        any(prompt.truncation_inferred for prompt in prompts),
    )


def paired(prompts: tuple[ComparedPrompt, ...]) -> ComparedPair:
    verdicts = [prompt.solved for prompt in prompts]
    right = "".join(letter for letter, solved in zip(TARGET_LETTERS, verdicts, strict=False) if solved)
    first, *others = (prompt.score for prompt in prompts)
    changes = [score - first for score in others if score is not None and first is not None]
    return ComparedPair(prompts, "" if None in verdicts else right or NONE_CORRECT, max(changes, key=abs, default=0.0))


def by_source(pairs: Sequence[ComparedPair], unit: str) -> list[SourceComparison]:
    """All of them, then each data source, the largest first, where there is more than one."""
    names = Counter(pair.source for pair in pairs)
    chosen = [name for name, _ in names.most_common(MOST_SOURCES)] if len(names) > 1 else []
    parts = [[pair for pair in pairs if pair.source == name] for name in chosen]
    return [source(EVERY, pairs, unit), *(source(name, part, unit) for name, part in zip(chosen, parts, strict=True))]


def source(name: str, pairs: Sequence[ComparedPair], unit: str) -> SourceComparison:
    k = min((prompt.evaluated_count for pair in pairs for prompt in pair.prompts if prompt.evaluated_count), default=0)
    measures: dict[str, Callable[[ComparedPrompt], float | None]] = {
        "score": lambda prompt: prompt.score,
        "pass@1": lambda prompt: prompt.correct_count / prompt.evaluated_count if prompt.evaluated_count else None,
        "pass@k": lambda prompt: (
            bootstrap.compute_pass_at_k(k, prompt.correct_count, prompt.evaluated_count)
            if prompt.evaluated_count and k > 1
            else None
        ),
        "maj@n": lambda prompt: prompt.majority_accuracy if k > 1 else None,
        "length": lambda prompt: mean(prompt.tokens if unit == "tokens" else prompt.chars),
        "truncated": lambda prompt: mean(prompt.truncated),
    }
    return SourceComparison(name, len(pairs), k, figures(pairs, measures))


def mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def figures(
    pairs: Sequence[ComparedPair], measures: Mapping[str, Callable[[ComparedPrompt], float | None]]
) -> dict[str, list[ComparedMean]]:
    """By measure, one per cell, of the prompts that it knows in every cell; all measures are drawn together."""
    tables = {name: table(pairs, measure) for name, measure in measures.items()}
    changes = [values[:, 1:] - values[:, :1] for values in tables.values()]
    spans = iter(bootstrap.compute_intervals(np.hstack(changes)))
    return {name: [*figured(values, spans)] for name, values in tables.items()}


def table(pairs: Sequence[ComparedPair], measure: Callable[[ComparedPrompt], float | None]) -> bootstrap.FloatArray:
    """Shape (pairs, cells), a row NaN where the measure lacks a cell."""
    values = np.array([[measure(prompt) for prompt in pair.prompts] for pair in pairs], np.float64)
    if not pairs:
        return np.empty((0, 1))
    values[np.isnan(values).any(axis=1)] = np.nan
    return values


def figured(values: bootstrap.FloatArray, spans: Iterator[tuple[float, float] | None]) -> Iterator[ComparedMean]:
    known = values[np.isfinite(values).all(axis=1)]
    means: list[float | None] = known.mean(axis=0).tolist() if len(known) else [None] * values.shape[1]
    first, *others = means
    yield ComparedMean(first)
    for mean, span in zip(others, spans, strict=False):
        yield ComparedMean(mean) if mean is None or first is None else ComparedMean(mean, mean - first, span)
