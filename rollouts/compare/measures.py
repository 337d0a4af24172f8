"""Means of all samples of a step, as sums per prompt, so that a bootstrap resamples prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rollouts.compare import bootstrap, sides
from rollouts.compare.sides import Side

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean as sums per prompt: `parts` / `wholes`, one array per side."""

    name: str
    parts: list[FloatArray]
    wholes: list[FloatArray]


def build_measures(loaded: Sequence[Side], unit: str) -> tuple[int, list[Measure]]:
    """`k` of pass@k, and the measures that at least one side has."""
    columns = {
        "score": "score", "pass@1": "correct", "length": unit, "truncated": "truncated",
    }  # fmt: skip
    names = dict.fromkeys(name for side in loaded for name in side.values if name.startswith((sides.PART, sides.MARK)))
    measures = [
        build_mean_measure(name, [side.values.get(key) for side in loaded], loaded) for name, key in columns.items()
    ]
    k, pass_at_k = build_pass_at_k(loaded)
    if k > 1:
        measures.insert(2, pass_at_k)
    measures.append(build_zero_variance(loaded))
    measures += [build_mean_measure(name, [side.values.get(name) for side in loaded], loaded) for name in names]
    return k, [measure for measure in measures if is_informative(measure)]


def is_informative(measure: Measure) -> bool:
    """A mark that no sample has is left out."""
    if measure.name.startswith(sides.MARK):
        return any(part.any() for part in measure.parts)
    return any(whole.any() for whole in measure.wholes)


def sum_by_prompt(side: Side, values: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(side.prompts, values, side.prompt_count), np.float64)


def build_mean_measure(name: str, arrays: Sequence[FloatArray | None], loaded: Sequence[Side]) -> Measure:
    parts: list[FloatArray] = []
    wholes: list[FloatArray] = []
    for values, side in zip(arrays, loaded, strict=True):
        values = np.full(len(side.prompts), np.nan) if values is None else values
        known = np.isfinite(values)
        parts.append(sum_by_prompt(side, np.where(known, values, 0)))
        wholes.append(sum_by_prompt(side, known.astype(np.float64)))
    return Measure(name, parts, wholes)


def build_pass_at_k(loaded: Sequence[Side]) -> tuple[int, Measure]:
    """`k` is the largest number of answers that nine of ten prompts of every side have; the others are left out."""
    correct: list[FloatArray] = []
    evaluated: list[FloatArray] = []
    for side in loaded:
        values = side.values["correct"]
        known = np.isfinite(values)
        evaluated.append(sum_by_prompt(side, known.astype(np.float64)))
        correct.append(sum_by_prompt(side, np.where(known, values, 0)))
    k = int(min((np.percentile(counts[counts > 0], 10) if counts.any() else 0 for counts in evaluated), default=0))
    parts, wholes = [], []
    for right, counts in zip(correct, evaluated, strict=True):
        enough = counts >= max(k, 1)
        pairs = zip(right.astype(int).tolist(), counts.astype(int).tolist(), enough.tolist(), strict=True)
        parts.append(np.array([bootstrap.compute_pass_at_k(k, got, n) if has else 0.0 for got, n, has in pairs]))
        wholes.append(enough.astype(np.float64))
    return k, Measure(f"pass@{k}", parts, wholes)


def build_zero_variance(loaded: Sequence[Side]) -> Measure:
    """The share of prompts with two or more scores that are all equal."""
    parts, wholes = [], []
    for side in loaded:
        known = np.isfinite(side.values["score"])
        prompts, scores = side.prompts[known], side.values["score"][known]
        low, high = np.full(side.prompt_count, np.inf), np.full(side.prompt_count, -np.inf)
        np.minimum.at(low, prompts, scores)
        np.maximum.at(high, prompts, scores)
        several = np.bincount(prompts, minlength=side.prompt_count) > 1
        parts.append((several & (low == high)).astype(np.float64))
        wholes.append(several.astype(np.float64))
    return Measure("zero-variance", parts, wholes)
