from __future__ import annotations

import time

import numpy as np
import pytest

from rollouts.compare import bootstrap
from rollouts.compare.bootstrap import compute_intervals, compute_pass_at_k


def test_the_interval_of_a_mean_is_about_two_standard_errors_wide_and_the_same_each_time() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, size=(400, 1))
    (first,), (again,) = compute_intervals(values), compute_intervals(values)
    assert first == again is not None
    error = values.std() / 20
    assert first[0] == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert first[1] == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_columns_are_drawn_together_and_unknown_values_left_out() -> None:
    known = np.random.default_rng(2).normal(size=200)
    holes = np.where(np.arange(200) % 2, np.nan, known)
    spread, same, half, single, nothing = compute_intervals(
        np.column_stack([known, known, holes, [1.0] + [np.nan] * 199, [np.nan] * 200])
    )
    assert spread == same and spread is not None and half is not None
    assert half[1] - half[0] > 1.2 * (spread[1] - spread[0])
    assert single is None and nothing is None


def test_no_prompts_have_no_interval() -> None:
    assert compute_intervals(np.empty((0, 2))) == [None, None]


def test_fifty_thousand_prompts_take_seconds() -> None:
    began = time.process_time()
    (span,) = compute_intervals(np.random.default_rng(3).integers(0, 2, size=(50_000, 1)).astype(np.float64))
    assert time.process_time() - began < 5
    assert span is not None and 0.48 < span[0] < span[1] < 0.52


def test_draws_are_fewer_where_prompts_are_many_but_never_too_few() -> None:
    def count(prompts: int) -> int:
        return sum(len(piece) for piece in bootstrap.resample_prompt_weights(prompts))

    assert (count(1), count(40_000), count(200_000)) == (2000, 500, 200)


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    assert [compute_pass_at_k(2, right, 4) for right in range(5)] == pytest.approx([0, 1 / 2, 5 / 6, 1, 1])
    assert compute_pass_at_k(1, 3, 8) == 3 / 8
