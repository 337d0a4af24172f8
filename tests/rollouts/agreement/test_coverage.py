"""95 % intervals contain the true value in 93 to 97 % of simulations: a few scenarios of the script, which has all."""

from __future__ import annotations

import pytest

from scripts.agreement_coverage import (
    Scenario,
    build_agreement,
    build_difference,
    build_population,
    build_rate,
    measure_coverage,
    spread_errors,
    spread_near,
)

SKEWED = [0.05, 0.05, 0.1, 0.2, 0.6]


@pytest.mark.parametrize(
    ("scenario", "simulations"),
    [
        (build_agreement("85:15", [0.85, 0.15], spread_errors(2, 0.97), 60), 800),
        (build_agreement("skewed ratings", SKEWED, spread_near(5, 0.5), 100, kind="rating"), 600),
        (build_agreement("kappa", [0.5, 0.3, 0.2], spread_errors(3, 0.8), 60), 600),
        (build_rate("5 in each of 20 steps", build_population(0.1, 20, 5)), 500),
        (build_difference("two runs", build_population(0.3, 1, 80), build_population(0.15, 1, 60)), 500),
    ],
    ids=lambda value: value.name if isinstance(value, Scenario) else "",
)
def test_intervals_contain_the_true_value(scenario: Scenario, simulations: int) -> None:
    found = measure_coverage(scenario, simulations)
    assert 0.93 <= found.share <= 0.97
    assert found.missing < 0.02
