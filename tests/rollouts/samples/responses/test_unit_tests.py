"""Results of unit tests in the extras of a sample."""

from __future__ import annotations

import pytest

from rollouts.samples.responses.unit_tests import MAX_TESTS, parse_unit_tests


@pytest.mark.parametrize("extras", [{"tests": {"passed": [True] * 500}}, {"passed_by": [True] * 500}])
def test_only_the_first_tests_of_a_long_list_are_shown(extras: dict[str, object]) -> None:
    result = parse_unit_tests(extras)
    assert result and len(result.cases) == MAX_TESTS
