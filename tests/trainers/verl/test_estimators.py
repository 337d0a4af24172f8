"""Guidance rules and masks of a plan with each advantage estimator of real verl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.trainers.verl.plugin.guidance import EXCLUDING_ESTIMATORS
from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules
from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

OTHERS, MASKED = (0, 2, 3), (1, 4, 5)
SELECTED = [("What is 0 plus 1 ?", "wrong 2", [0])] + [
    ("What is 1 plus 1 ?", response, [0]) for response in ("wrong 4", "wrong 5")
]


def run_estimators(folder: Path, mood: str, baseline: str) -> Training:
    receiver = GuidanceServer(
        build_rules({"key": "again", "target": "response"}, baseline=baseline, responses=SELECTED)
    )
    return train("estimators.py", mood, folder=folder, receiver=receiver, GUIDED="1", ROLLOUTDECK_GUIDANCE="on")


def test_masked_rows_leave_the_baseline_only_of_estimators_where_no_other_number_changes(tmp_path: Path) -> None:
    training = run_estimators(tmp_path, "", "exclude")
    found = training.json("found.json")
    assert found.keys() > EXCLUDING_ESTIMATORS
    for name, results in found.items():
        guided = results["guided"]["advantages"]
        assert [guided[row] for row in MASKED] == [0, 0, 0], name
        expected = [results["plain"]["advantages"][row] for row in OTHERS]
        if name in EXCLUDING_ESTIMATORS:
            expected = results["others"]["advantages"]
        assert [guided[row] for row in OTHERS] == expected, name
        assert {key: results["guided"][key] for key in ("uids", "columns")} == {
            key: results["plain"][key] for key in ("uids", "columns")
        }
    for name in found.keys() - EXCLUDING_ESTIMATORS:
        message = f"With verl's adv_estimator={name}, masked rows always count in the baseline"
        assert training.done.stderr.count(message) == 1, name


@pytest.mark.parametrize("baseline", ["trainer", "exclude"])
def test_rows_that_verl_draws_again_are_masked_where_they_are(tmp_path: Path, baseline: str) -> None:
    results: dict[str, Any] = run_estimators(tmp_path, "resampled", baseline).json("found.json")["gae"]
    plain, guided = results["plain"], results["guided"]
    assert guided["responses"] == plain["responses"] != sorted(plain["responses"])
    assert (guided["uids"], guided["columns"]) == (plain["uids"], plain["columns"])
    masked = {"wrong 2", "wrong 4", "wrong 5", "wrong 3"}  # the last one by the plan
    pairs = zip(plain["responses"], plain["advantages"], strict=True)
    assert guided["advantages"] == [0 if response in masked else value for response, value in pairs]
    assert 0 not in plain["advantages"] and len({*guided["advantages"]}) > 1
