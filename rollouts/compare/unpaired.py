"""Compares all samples of steps whose prompts differ: means with intervals, sources, distributions.

Each side is resampled by prompts, on its own, so the samples of a prompt stay together. With the *same mix* of sources,
every side is weighted to the shares that the sources have on side A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt

from rollouts.compare import bootstrap, distributions, sides
from rollouts.compare.compare import ComparedMean
from rollouts.compare.distributions import Distribution
from rollouts.compare.measures import FloatArray, Measure, build_measures
from rollouts.compare.sides import Side
from rollouts.compare.targets import ComparisonTarget, load_rows
from rollouts.lib import CacheSize, cached

IntArray = npt.NDArray[np.int64]

MIN_SOURCE_PROMPTS = 10  # on each side; smaller sources are weighted together, as `OTHER_SOURCES`
MAX_SOURCES = 30
MAX_BREAKDOWN_PARTS = 4
OTHER_SOURCES = "\0other"
ALL, SAME_MIX = "all", "mix"


@dataclass(frozen=True, slots=True)
class MeasureRow:
    """The means of all sides, of all samples and with the same mix of sources (None if that is not possible)."""

    name: str
    all: list[ComparedMean]
    mix: list[ComparedMean] | None


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A source, or `OTHER_SOURCES`: its prompts and its share of the samples on each side, and their mean score."""

    name: str
    prompts: list[int]
    shares: list[float]
    scores: list[ComparedMean]


@dataclass(slots=True)
class UnpairedComparison:
    """`small_sources` are those in `OTHER_SOURCES`; `left_out` those that some side lacks, without weight in the same
    mix. `charts` holds the distributions by view (`ALL`, `SAME_MIX`), `breakdowns` those of the score by
    view and kind."""

    totals: list[int]
    counted: list[int]
    prompts: list[int]
    shared_prompts: int
    all_prompts: int
    k: int
    unit: str
    truncation_inferred: bool
    rows: list[MeasureRow] = field(default_factory=list)
    sources: list[SourceRow] = field(default_factory=list)
    small_sources: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    charts: dict[str, list[Distribution]] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, list[Distribution]]] = field(default_factory=dict)

    @property
    def has_mix(self) -> bool:
        return SAME_MIX in self.charts

    def get_row(self, name: str) -> MeasureRow | None:
        return next((row for row in self.rows if row.name == name), None)


def compare_all_samples(targets: Sequence[ComparisonTarget]) -> UnpairedComparison:
    """Computed once per version of the steps. Raises NotFoundError and StorageUnavailableError."""
    steps = ((target.step, target.run) for target in targets)
    return build_unpaired(tuple((step.pk, step.created_at, step.version, run.version) for step, run in steps))


@cached(CacheSize.COMPARISONS)
def build_unpaired(steps: tuple[tuple[int, datetime, int, int], ...]) -> UnpairedComparison:
    return compare_sides([sides.load_side(rows) for rows in load_rows([pk for pk, *_ in steps])])


def compare_sides(loaded: Sequence[Side]) -> UnpairedComparison:
    unit = "tokens" if all(np.isfinite(side.values["tokens"]).all() for side in loaded) else "chars"
    k, measures = build_measures(loaded, unit)
    categories, codes, small = group_sources(loaded)
    keys = [set(side.prompt_keys) for side in loaded]
    result = UnpairedComparison(
        [side.total for side in loaded],
        [len(side.prompts) for side in loaded],
        [side.prompt_count for side in loaded],
        len(set.intersection(*keys)),
        len(set.union(*keys)),
        k,
        unit,
        any(side.truncation_inferred for side in loaded),
        small_sources=small,
    )
    if not measures:
        return result
    counts = np.array(
        [np.bincount(code[side.prompts], minlength=len(categories)) for side, code in zip(loaded, codes, strict=True)]
    )
    on_all = np.array([bool(column.all()) for column in (counts > 0).T])
    result.left_out = [name for number, name in enumerate(categories) if not on_all[number]]
    mix = counts[0] * on_all / max(1, (counts[0] * on_all).sum())
    possible = len(categories) > 1 and np.count_nonzero(on_all) > 0
    usable = find_usable_sources(measures, codes, len(categories))
    means = [resample_means(measures, at, code, mix, usable) for at, code in enumerate(codes)]
    for number, measure in enumerate(measures):
        known = [int(np.count_nonzero(counted)) for counted in measure.wholes]
        in_all = build_means([side.all[:, number] for side in means], known)
        in_mix = build_means([side.mix[:, number] for side in means], known) if possible else None
        result.rows.append(MeasureRow(measure.name, in_all, in_mix))
    if len(categories) > 1:
        result.sources = build_source_rows(loaded, categories, codes, counts, means)
    add_distributions(result, loaded, categories, codes, counts, mix if possible else None)
    return result


def group_sources(loaded: Sequence[Side]) -> tuple[list[str], list[IntArray], list[str]]:
    """The categories of sources, the category of each prompt of each side, and the sources that are in the last
    category, `OTHER_SOURCES`."""
    counts = [Counter(side.sources) for side in loaded]
    every = sum(counts, Counter[str]())
    large = [name for name, _ in every.most_common() if all(count[name] >= MIN_SOURCE_PROMPTS for count in counts)]
    categories = large[:MAX_SOURCES]
    small = sorted(set(every) - set(categories))
    if len(every) == 1:
        categories, small = list(every), []
    elif small:
        categories = [*categories, OTHER_SOURCES]
    numbers = {name: number for number, name in enumerate(categories)}
    last = len(categories) - 1
    codes = [np.array([numbers.get(name, last) for name in side.sources], np.int64) for side in loaded]
    return categories, codes, small


@dataclass(frozen=True, slots=True)
class ResampledMeans:
    """Means of one side, shape (1 + draws, measures); the first row is of the data itself. `by_source` has the mean
    score, shape (1 + draws, sources); NaN if no side has scores."""

    all: FloatArray
    mix: FloatArray
    by_source: FloatArray


def resample_means(
    measures: Sequence[Measure], at: int, codes: IntArray, mix: FloatArray, usable: npt.NDArray[np.bool_]
) -> ResampledMeans:
    """Of side number `at`, whose prompts have the sources `codes`."""
    prompts = len(codes)
    columns = [*(measure.parts[at] for measure in measures), *(measure.wholes[at] for measure in measures)]
    values = np.stack(columns, axis=1)
    selections = [np.flatnonzero(codes == code) for code in range(len(mix))]
    score = next((number for number, measure in enumerate(measures) if measure.name == "score"), None)
    in_all, in_mix, by_source = [], [], []
    draws = bootstrap.resample_prompt_weights(prompts, seed=bootstrap.SEED + at, cost=4)
    for weights in [np.ones((1, prompts)), *draws]:
        totals = np.stack([weights.take(chosen, axis=1) @ values[chosen] for chosen in selections], axis=1)
        sums, sizes = totals[:, :, : len(measures)], totals[:, :, len(measures) :]
        with np.errstate(divide="ignore", invalid="ignore"):
            means = sums / sizes
            shares = mix[None, :, None] * (usable[None] & (sizes > 0))
            in_all.append(sums.sum(axis=1) / sizes.sum(axis=1))
            in_mix.append(np.nansum(means * shares, axis=1) / shares.sum(axis=1))
        by_source.append(np.full(means.shape[:2], np.nan) if score is None else means[:, :, score])
    return ResampledMeans(np.concatenate(in_all), np.concatenate(in_mix), np.concatenate(by_source))


def find_usable_sources(measures: Sequence[Measure], codes: Sequence[IntArray], sources: int) -> npt.NDArray[np.bool_]:
    """Whether every side has the measure in the source; only then it counts in the same mix. Shape (sources,
    measures)."""
    usable = np.ones((sources, len(measures)), bool)
    for at, code in enumerate(codes):
        sizes = [[measure.wholes[at][code == number].sum() for measure in measures] for number in range(sources)]
        usable &= np.array(sizes).reshape(usable.shape) > 0
    return usable


def build_means(resampled: Sequence[FloatArray], prompts: Sequence[int]) -> list[ComparedMean]:
    """The mean of each side, and its difference from the first side with a 95 % interval. `prompts` have the value on
    each side; one alone has no interval."""
    means = [to_known(values[0]) for values in resampled]
    first = means[0]
    result = [ComparedMean(first)]
    for values, mean, count in zip(resampled[1:], means[1:], prompts[1:], strict=True):
        if mean is None or first is None:
            result.append(ComparedMean(mean))
            continue
        length = min(len(values), len(resampled[0]))
        changes = values[1:length] - resampled[0][1:length]
        changes = changes[np.isfinite(changes)]
        interval = None
        if min(count, prompts[0]) > 1 and len(changes):
            low, high = np.percentile(changes, [bootstrap.TAIL_PERCENT, 100 - bootstrap.TAIL_PERCENT]).tolist()
            interval = (low, high)
        result.append(ComparedMean(mean, mean - first, interval))
    return result


def to_known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def build_source_rows(
    loaded: Sequence[Side],
    categories: Sequence[str],
    codes: Sequence[IntArray],
    counts: IntArray,
    means: Sequence[ResampledMeans],
) -> list[SourceRow]:
    rows = []
    for number, name in enumerate(categories):
        prompts = [int(np.count_nonzero(code == number)) for code in codes]
        shares = [int(count[number]) / max(1, len(side.prompts)) for count, side in zip(counts, loaded, strict=True)]
        rows.append(
            SourceRow(name, prompts, shares, build_means([side.by_source[:, number] for side in means], prompts))
        )
    return rows


def add_distributions(
    result: UnpairedComparison,
    loaded: Sequence[Side],
    categories: Sequence[str],
    codes: Sequence[IntArray],
    counts: IntArray,
    mix: FloatArray | None,
) -> None:
    columns = {
        "score": [side.values["score"] for side in loaded],
        "length": [side.values[result.unit] for side in loaded],
    }
    bins = {name: distributions.choose_bins(arrays, is_length=name == "length") for name, arrays in columns.items()}
    weights = {ALL: [np.ones(len(side.prompts)) for side in loaded]}
    if mix is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [np.nan_to_num(mix / count, posinf=0.0) for count in counts]
        weights[SAME_MIX] = [ratio[code[side.prompts]] for ratio, code, side in zip(ratios, codes, loaded, strict=True)]
    everything = [np.ones(len(side.prompts), bool) for side in loaded]
    breakdowns = find_breakdowns(result, loaded, categories, codes)
    for view, view_weights in weights.items():
        result.charts[view] = [
            distributions.build_distribution(name, bins[name], arrays, view_weights, everything)
            for name, arrays in columns.items()
            if bins[name]
        ]
        result.breakdowns[view] = {
            kind: [
                distributions.build_distribution(name, bins["score"], columns["score"], view_weights, masks)
                for name, masks in parts
            ]
            for kind, parts in breakdowns.items()
            if parts and bins["score"]
        }


def find_breakdowns(
    result: UnpairedComparison, loaded: Sequence[Side], categories: Sequence[str], codes: Sequence[IntArray]
) -> dict[str, list[tuple[str, list[npt.NDArray[np.bool_]]]]]:
    """Parts of the samples by source, by third of the lengths, and by mark."""
    by_source = [
        (name, [code[side.prompts] == number for code, side in zip(codes, loaded, strict=True)])
        for number, name in enumerate(categories[:MAX_BREAKDOWN_PARTS])
        if len(categories) > 1
    ]
    lengths = [side.values[result.unit] for side in loaded]
    pooled = np.concatenate([values[np.isfinite(values)] for values in lengths])
    ends = [round(float(value)) for value in np.percentile(pooled, [33.3, 66.7])] if len(pooled) else []
    by_length = []
    if ends and ends[0] < ends[1]:
        for low, high in ((None, ends[0]), (ends[0], ends[1]), (ends[1], None)):
            length_bin = distributions.Bin(low, high, is_whole=True)
            masks = [distributions.select_bin(values, length_bin) & np.isfinite(values) for values in lengths]
            by_length.append((f"{'' if low is None else low}–{'' if high is None else high}", masks))
    marks = [row.name for row in result.rows if row.name.startswith(sides.MARK)][: MAX_BREAKDOWN_PARTS - 1]
    by_mark = [
        (name, [side.values[name] > 0 for side in loaded])
        for name in [*marks, "truncated"]
        if any((side.values[name] > 0).any() for side in loaded)
    ]
    return {"source": by_source, "length": by_length, "marks": by_mark}
