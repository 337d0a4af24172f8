"""How sure a difference between two sets of answers is: a paired bootstrap over prompts, the same at every call."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

SEED = 20_011
DRAWS = 2000
FEWEST = 200
MOST_PICKS = 20_000_000  # prompts drawn in all; more prompts make fewer draws, so that the time stays bounded
AT_ONCE = 2_000_000
TAIL = 2.5  # per cent at each end of a 95 % interval


def compute_intervals(values: FloatArray) -> list[tuple[float, float] | None]:
    """95 % intervals of the means of the columns, shape (prompts, columns), NaN where unknown.

    Each draw takes whole prompts, for all columns the same ones. None for a column with fewer than two known values.
    """
    prompts, columns = values.shape
    known = np.isfinite(values)
    if not prompts or not columns:
        return [None] * columns
    filled = np.where(known, values, 0)
    means = np.concatenate([one @ filled / counted(one @ known) for one in resample_prompt_weights(prompts)])
    with np.errstate(invalid="ignore"):
        low, high = np.nanpercentile(np.where(known.any(axis=0), means, 0), [TAIL, 100 - TAIL], axis=0)
    enough = known.sum(axis=0) > 1
    return [(float(low[at]), float(high[at])) if enough[at] else None for at in range(columns)]


def counted(weights: FloatArray) -> FloatArray:
    """How many known prompts each draw holds; NaN where it holds none, so that it says nothing."""
    return np.where(weights > 0, weights, np.nan)


def resample_prompt_weights(prompts: int) -> Iterator[FloatArray]:
    """How often each prompt is drawn, shape (draws, prompts) in pieces that fit in memory."""
    picks = np.random.default_rng(SEED)
    left = max(FEWEST, min(DRAWS, MOST_PICKS // prompts))
    size = max(1, AT_ONCE // prompts)
    return (piece(picks, min(size, left - at), prompts) for at in range(0, left, size))


def piece(picks: np.random.Generator, rows: int, prompts: int) -> FloatArray:
    drawn = picks.integers(prompts, size=(rows, prompts)) + prompts * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * prompts).reshape(rows, prompts).astype(np.float64)


def compute_pass_at_k(k: int, right: int, count: int) -> float:
    """The chance that one of `k` of these `count` answers, drawn without putting back, is right."""
    return 1.0 - comb(count - right, k) / comb(count, k)
