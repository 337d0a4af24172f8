"""The mean advantage of a sample."""

from __future__ import annotations

import math

import pytest

from rollouts.samples.index_values import compute_mean_advantage


@pytest.mark.parametrize(
    ("advantages", "mean"),
    [([0.1], 0.1), ([1.0, 2.0], 1.5), ([None, 0.3], 0.3), ([], None), (None, None), ([1e39], math.inf)],
)
def test_the_mean_advantage_is_rounded_and_never_fails(
    advantages: list[float | None] | None, mean: float | None
) -> None:
    assert compute_mean_advantage(advantages) == mean
