"""How often 95 % intervals of `rollouts/agreement/` hold the true value: `python -m scripts.agreement_coverage`.

Simulates people who err with known probabilities, and samples of a population whose rates are known. Prints the
coverage of the product's intervals and, for comparison, of the percentile bootstrap. It takes some minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")

from rollouts.agreement import Estimate
from rollouts.agreement.answers import CHOICE, NUMBER, RATING, AnswerTable
from rollouts.agreement.coefficients import average_ratio, compute_percent
from rollouts.agreement.distances import choose_distance
from rollouts.agreement.intervals import estimate_agreement
from rollouts.agreement.questions import estimate_alpha, estimate_kappa
from rollouts.agreement.rates import build_design, estimate_mean, estimate_rate, subtract_estimates

Array = npt.NDArray[np.float64]
Interval = tuple[float, float] | None
Resample = Callable[[], Interval]
DRAWS = 1000


@dataclass(frozen=True)
class Scenario:
    """`draw` returns an estimate of one simulation, and what computes the interval of the percentile bootstrap."""

    name: str
    truth: float
    draw: Callable[[np.random.Generator], tuple[Estimate, Resample]]


@dataclass(frozen=True)
class Coverage:
    """`share` of the intervals hold the truth; `missing` is the share of simulations without an interval."""

    share: float
    bootstrap: float | None
    missing: float
    width: float


def measure_coverage(scenario: Scenario, simulations: int, seed: int = 1, with_bootstrap: bool = False) -> Coverage:
    generator = np.random.default_rng(seed)
    held, held_by_bootstrap, widths = [], [], []
    for _ in range(simulations):
        estimate, resample_estimate = scenario.draw(generator)
        if estimate.low is None or estimate.high is None:
            continue
        widths.append(estimate.high - estimate.low)
        held.append(estimate.low <= scenario.truth <= estimate.high)
        if with_bootstrap and (interval := resample_estimate()):
            held_by_bootstrap.append(interval[0] <= scenario.truth <= interval[1])
    return Coverage(
        float(np.mean(held)) if held else float("nan"),
        float(np.mean(held_by_bootstrap)) if held_by_bootstrap else None,
        1 - len(held) / simulations,
        float(np.mean(widths)) if widths else float("nan"),
    )


def spread_errors(values: int, accuracy: float) -> Array:
    """The chance of each answer (column) to an item of each true value (row): errors are equally likely."""
    chances = np.full((values, values), (1 - accuracy) / (values - 1))
    np.fill_diagonal(chances, accuracy)
    return chances


def spread_near(values: int, width: float) -> Array:
    """Errors are more likely to near values."""
    far = np.subtract.outer(np.arange(values), np.arange(values))
    chances = np.exp(-(far**2) / (2 * width**2))
    return np.asarray(chances / chances.sum(axis=1, keepdims=True))


def compute_true_alpha(shares: Array, chances: Array, kind: str) -> float:
    joint = chances.T @ np.diag(shares) @ chances
    answers = joint.sum(axis=0)
    ranks = np.cumsum(answers) - answers / 2 if kind == RATING else np.arange(len(shares))
    far = np.subtract.outer(ranks, ranks)
    apart = (far != 0).astype(float) if kind == CHOICE else far**2
    return float(1 - (joint * apart).sum() / (np.outer(answers, answers) * apart).sum())


def draw_answers(
    generator: np.random.Generator, shares: Array, chances: Array, items: int, people: int, missing: float
) -> npt.NDArray[np.int64]:
    """Shape (items, people); -1 is missing."""
    true = generator.choice(len(shares), size=items, p=shares)
    bounds = np.cumsum(chances, axis=1)[true][:, None, :-1]
    answers = (generator.random((items, people))[..., None] > bounds).sum(axis=-1)
    return np.where(generator.random((items, people)) < missing, -1, answers)


def build_answer_table(answers: npt.NDArray[np.int64], values: int) -> AnswerTable:
    answers = answers[(answers >= 0).sum(axis=1) > 1]
    item, person = np.nonzero(answers >= 0)
    names = [str(number) for number in range(answers.shape[1])]
    return AnswerTable(names, list(range(values)), item, person, answers[item, person], len(answers))


def build_agreement(
    name: str, shares: list[float], chances: Array, items: int, people: int = 2, missing: float = 0, kind: str = CHOICE
) -> Scenario:
    """Of Krippendorff's alpha, or of percent agreement or Cohen's kappa if the name begins so."""
    portions, values = np.array(shares), len(shares)

    def draw(generator: np.random.Generator) -> tuple[Estimate, Resample]:
        answers = draw_answers(generator, portions, chances, items, people, missing)
        table = build_answer_table(answers, values)
        counts = np.bincount(table.value, minlength=values).astype(np.float64)
        distance = choose_distance(kind, table.values, counts)
        if name.startswith("kappa"):
            return estimate_kappa(answers[:, 0], answers[:, 1], values, distance), skip_resampling
        if name.startswith("percent"):
            return estimate_agreement(compute_percent(table.pairs)), skip_resampling
        return estimate_alpha(table.pairs, distance), lambda: resample_alpha(table) if kind == CHOICE else None

    truth = compute_true_alpha(portions, chances, kind)
    if name.startswith("percent"):
        truth = float(np.trace(chances.T @ np.diag(portions) @ chances))
    return Scenario(f"{name}, {items} items, {people} people", truth, draw)


def skip_resampling() -> Interval:
    return None


def resample_alpha(table: AnswerTable) -> Interval:
    """The percentile bootstrap over items of nominal alpha, from sums of each item."""
    sizes = table.answers_per_item
    counts = np.bincount(table.item * len(table.values) + table.value, minlength=table.items * len(table.values))
    counts = counts.reshape(table.items, len(table.values)).astype(np.float64)
    apart = (sizes**2 - (counts**2).sum(axis=1)) / (sizes - 1)
    totals = resample(table.items) @ np.column_stack([apart, counts])
    size = totals[:, 1:].sum(axis=1)
    expected = size**2 - (totals[:, 1:] ** 2).sum(axis=1)
    known = expected > 0
    alphas = 1 - (size[known] - 1) * totals[known, 0] / expected[known]
    return (float(np.percentile(alphas, 2.5)), float(np.percentile(alphas, 97.5))) if len(alphas) else None


RESAMPLED: dict[int, Array] = {}


def resample(items: int) -> Array:
    """How often each draw has each item; the same draws for all simulations, as with a fixed seed."""
    if items not in RESAMPLED:
        picks = np.random.default_rng(0).integers(items, size=(DRAWS, items)) + items * np.arange(DRAWS)[:, None]
        RESAMPLED[items] = np.bincount(picks.ravel(), minlength=DRAWS * items).reshape(DRAWS, items).astype(np.float64)
    return RESAMPLED[items]


def build_overlap(items: int) -> Scenario:
    """Half of the marks are the same, the others overlap in part or not at all."""

    def draw(generator: np.random.Generator) -> tuple[Estimate, Resample]:
        overlaps = np.where(
            generator.random(items) < 0.5, 1.0, generator.random(items) * (generator.random(items) < 0.6)
        )
        return estimate_agreement(average_ratio(1 - overlaps)), lambda: resample_mean(overlaps)

    return Scenario(f"overlap F1, {items} items", 0.5 + 0.5 * 0.5 * 0.6, draw)


def resample_mean(values: Array) -> Interval:
    low, high = np.percentile(resample(len(values)) @ values / len(values), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Population:
    """`hits` of `base` is the rate; samples are drawn with `probabilities` in each of the `strata`, by whole groups."""

    hits: npt.NDArray[np.bool_]
    base: npt.NDArray[np.bool_]
    strata: npt.NDArray[np.int64]
    picks: dict[int, int]
    group_size: int = 1

    @property
    def truth(self) -> float:
        return float(self.hits.sum() / self.base.sum())

    def draw(self, generator: np.random.Generator) -> tuple[npt.NDArray[np.int64], Array]:
        """Rows, and the sampling probability of each. Rows of a group and of a stratum are neighbours."""
        rows, probabilities = [], []
        for stratum, count in self.picks.items():
            first, last = np.searchsorted(self.strata, [stratum, stratum + 1])
            groups = (last - first) // self.group_size
            starts = first + generator.choice(groups, size=count, replace=False) * self.group_size
            rows.append((starts[:, None] + np.arange(self.group_size)).ravel())
            probabilities.append(np.full(count * self.group_size, count / groups))
        return np.concatenate(rows), np.concatenate(probabilities)

    def estimate(self, generator: np.random.Generator) -> tuple[Estimate, Resample]:
        rows, probabilities = self.draw(generator)
        groups = None if self.group_size == 1 else (rows // self.group_size).tolist()
        design = build_design(probabilities, self.strata[rows].tolist(), groups)
        estimate = estimate_rate(design, self.hits[rows], self.base[rows])
        return estimate, skip_resampling if groups else lambda: self.resample(rows, probabilities)

    def resample(self, rows: npt.NDArray[np.int64], probabilities: Array) -> Interval:
        """The percentile bootstrap, in each stratum."""
        generator = np.random.default_rng(0)
        hits, bases = np.zeros(DRAWS), np.zeros(DRAWS)
        for stratum in np.unique(self.strata[rows]).tolist():
            chosen = rows[self.strata[rows] == stratum]
            picked = chosen[generator.integers(len(chosen), size=(DRAWS, len(chosen)))]
            weight = 1 / probabilities[self.strata[rows] == stratum][0]
            hits += weight * self.hits[picked].sum(axis=1)
            bases += weight * self.base[picked].sum(axis=1)
        low, high = np.percentile(hits / np.maximum(bases, 1e-9), [2.5, 97.5])
        return float(low), float(high)


def build_population(
    rate: float, strata: int, picks: int, uneven: bool = False, trend: bool = False, group_size: int = 1, seed: int = 5
) -> Population:
    """Of 40,000 samples, two thirds of them in the base. `uneven`: one half of the strata is drawn ten times as often.
    `trend`: the rate grows from 0 to twice the rate over the strata."""
    generator = np.random.default_rng(seed)
    size = 40_000 // strata
    stratum = np.repeat(np.arange(strata), size)
    chance = rate * 2 * (stratum + 0.5) / strata if trend else np.full(len(stratum), rate)
    shift = np.repeat(generator.normal(0, 0.15, len(stratum) // group_size), group_size) if group_size > 1 else 0.0
    base = generator.random(len(stratum)) < 2 / 3
    hits = base & (generator.random(len(stratum)) < np.clip(chance + shift, 0, 1))
    counts = {number: picks * 10 if uneven and number % 2 else picks for number in range(strata)}
    return Population(hits, base, stratum, counts, group_size)


def build_rate(name: str, population: Population) -> Scenario:
    return Scenario(f"rate, {name}", population.truth, population.estimate)


def build_difference(name: str, first: Population, second: Population) -> Scenario:
    def draw(generator: np.random.Generator) -> tuple[Estimate, Resample]:
        return subtract_estimates(first.estimate(generator)[0], second.estimate(generator)[0]), skip_resampling

    return Scenario(f"difference, {name}", second.truth - first.truth, draw)


def build_mean(population: Population) -> Scenario:
    scores = np.random.default_rng(3).random(len(population.strata)) ** 2 + population.hits

    def draw(generator: np.random.Generator) -> tuple[Estimate, Resample]:
        rows, probabilities = population.draw(generator)
        return estimate_mean(
            build_design(probabilities, population.strata[rows].tolist()), scores[rows]
        ), skip_resampling

    return Scenario("mean score, 20 strata", float(scores.mean()), draw)


def build_scenarios() -> Iterator[Scenario]:
    five, skewed = [0.1, 0.2, 0.3, 0.25, 0.15], [0.05, 0.05, 0.1, 0.2, 0.6]
    for items in (25, 50, 100, 300):
        for accuracy in (0.97, 0.9, 0.75):
            yield build_agreement(f"even, accuracy {accuracy}", [0.5, 0.5], spread_errors(2, accuracy), items)
            yield build_agreement(f"85:15, accuracy {accuracy}", [0.85, 0.15], spread_errors(2, accuracy), items)
        yield build_agreement("4 values, 30 % missing", [0.4, 0.3, 0.2, 0.1], spread_errors(4, 0.85), items, 3, 0.3)
        yield build_agreement("30 % missing", [0.5, 0.5], spread_errors(2, 0.9), items, 5, 0.3)
        yield build_agreement("kappa 70:30", [0.7, 0.3], spread_errors(2, 0.9), items)
        yield build_agreement("percent", [0.7, 0.3], spread_errors(2, 0.95), items)
        yield build_agreement("ratings", five, spread_near(5, 0.7), items, kind=RATING)
        yield build_agreement("ratings, 30 % missing", five, spread_near(5, 0.7), items, 3, 0.3, RATING)
        yield build_agreement("skewed ratings", skewed, spread_near(5, 0.5), items, kind=RATING)
        yield build_agreement("numbers", five, spread_near(5, 0.7), items, kind=NUMBER)
        yield build_overlap(items)
    for items in (74, 200):
        for accuracy in (0.99, 0.95):
            yield build_agreement(f"95:5, accuracy {accuracy}", [0.95, 0.05], spread_errors(2, accuracy), items)
    for rate in (0.03, 0.1, 0.4):
        one, twenty = build_population(rate, 1, 100), build_population(rate, 20, 10)
        yield build_rate(f"{rate}, 100 samples", one)
        yield build_rate(f"{rate}, 40 samples", build_population(rate, 1, 40))
        yield build_rate(f"{rate}, 10 in each of 20 steps", twenty)
        yield build_rate(f"{rate}, 1 in each of 100 steps, growing", build_population(rate, 100, 1, trend=True))
        yield build_rate(
            f"{rate}, half of 20 steps drawn ten times as often", build_population(rate, 20, 5, uneven=True)
        )
        yield build_rate(f"{rate}, 50 groups of 4", build_population(rate, 1, 50, group_size=4))
        other = build_population(rate / 2, 20, 6, seed=6)
        yield build_difference(f"{rate} and {rate / 2}", twenty, other)
    yield build_mean(build_population(0.1, 20, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    arguments = parser.parse_args()
    print(f"{'coverage':>8} {'bootstrap':>9} {'none':>6} {'width':>6}  scenario")
    for scenario in build_scenarios():
        if arguments.only not in scenario.name:
            continue
        found = measure_coverage(scenario, arguments.simulations, with_bootstrap=True)
        bootstrap = "" if found.bootstrap is None else f"{found.bootstrap:.1%}"
        print(f"{found.share:8.1%} {bootstrap:>9} {found.missing:6.1%} {found.width:6.3f}  {scenario.name}", flush=True)


if __name__ == "__main__":
    main()
