"""Statistics over prompts: a paired bootstrap with a fixed seed, and pass@k."""

from collections.abc import Iterator
from math import comb

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

SEED = 20_011
MAX_DRAWS = 2000
MIN_DRAWS = 200
MAX_PICKS = 20_000_000  # prompts in all draws; with more prompts there are fewer draws, which limits the time
BATCH_PICKS = 2_000_000
TAIL_PERCENT = 2.5  # at each end of a 95 % interval


def compute_intervals(values: FloatArray) -> list[tuple[float, float] | None]:
    """Returns the 95 % interval of the mean of each column. Shape (prompts, columns), NaN for an unknown value. A draw
    takes the same prompts for all columns. None for a column with fewer than two known values."""
    prompts, columns = values.shape
    known = np.isfinite(values)
    if not prompts or not columns:
        return [None] * columns
    filled = np.where(known, values, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw without known prompts has the mean NaN
        means = np.concatenate([weights @ filled / (weights @ known) for weights in resample_prompt_weights(prompts)])
        low, high = np.nanpercentile(np.where(known.any(axis=0), means, 0), [TAIL_PERCENT, 100 - TAIL_PERCENT], axis=0)
    enough = known.sum(axis=0) > 1
    return [(float(low[at]), float(high[at])) if enough[at] else None for at in range(columns)]


def resample_prompt_weights(prompts: int, seed: int = SEED, cost: int = 1) -> Iterator[FloatArray]:
    """Yields how often each draw has each prompt, shape (draws, prompts), in batches that fit in memory. Steps that are
    resampled independently need different seeds. `cost` is how much more a draw costs than one of paired prompts."""
    if not prompts:
        return
    generator = np.random.default_rng(seed)
    draws = max(MIN_DRAWS, min(MAX_DRAWS, MAX_PICKS // cost // prompts))
    size = max(1, BATCH_PICKS // prompts)
    for start in range(0, draws, size):
        rows = min(size, draws - start)
        picks = generator.integers(prompts, size=(rows, prompts)) + prompts * np.arange(rows)[:, None]
        counts = np.bincount(picks.ravel(), minlength=rows * prompts)
        yield counts.reshape(rows, prompts).astype(np.float64)


def compute_pass_at_k(k: int, correct: int, count: int) -> float:
    """Returns the probability that one of `k` of these `count` answers, drawn without replacement, is correct."""
    return 1.0 - comb(count - correct, k) / comb(count, k)
