"""Guidance rules in NeMo-RL's own `grpo_train`: what the policy gets to train on."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules
from tests.trainers.verl.process import ROOT, Training, train

pytestmark = pytest.mark.trainers

RULES = (
    {"key": "again", "target": "response"},
    {"key": "half", "action": "weight", "value": 0.5},
    {"key": "skip", "action": "drop", "target": "response"},
)
SELECTED: dict[str, Any] = {
    "prompts": [("What is 1 + 1?", [1])],
    "responses": [("What is 0 + 1?", "answer 1", [0]), ("What is 0 + 1?", "answer 3", [2])],
}
FAILURES = ("raise", "slow", "gone")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Training]:
    checkout = os.environ.get("NEMO_RL")
    if not checkout:
        pytest.skip("needs NEMO_RL, a checkout of NeMo-RL (github.com/NVIDIA-NeMo/RL)")
    folder = tmp_path_factory.mktemp("guided")
    receivers: dict[str, Receiver] = {"plain": Receiver(), "plain-reinforce": Receiver()}
    receivers |= {name: GuidanceServer(build_rules(*RULES, **SELECTED)) for name in ("trainer", "reinforce", *FAILURES)}
    receivers["exclude"] = GuidanceServer(build_rules(*RULES, baseline="exclude", **SELECTED))
    receivers["slow"].delay, extra = (
        30.0,
        {name: {"GUIDED": "1"} for name in ("trainer", "exclude", "reinforce", "raise")},
    )
    receivers["gone"].down()
    extra["raise"]["BREAKS"], extra["gone"] = "raise", {"BREAKS": "full"}
    extra["reinforce"]["ESTIMATOR"] = "reinforce_plus_plus"
    extra["plain-reinforce"] = {"ESTIMATOR": "reinforce_plus_plus"}
    cases = {
        name: {
            "ROLLOUTDECK_URL": receiver.url, "ROLLOUTDECK_SPOOL": str(folder / f"spool-{name}"),
            "ROLLOUTDECK_GUIDANCE": "on", "ESTIMATOR": "grpo", **extra.get(name, {}),
        }
        for name, receiver in receivers.items()
    }  # fmt: skip
    path = os.pathsep.join([checkout, str(ROOT)])
    script, environ = "../../nemo_rl/inside/guiding.py", {"PYTHONPATH": path, "CASES": json.dumps(cases)}
    done = train(script, folder=folder, **environ).done
    return {name: Training(receiver, folder, done) for name, receiver in receivers.items()}


def load_trained(trainings: dict[str, Training], case: str) -> list[dict[str, Any]]:
    trained: list[dict[str, Any]] = trainings[case].json(f"{case}.json")
    assert len(trained) == 3
    return trained


def read_advantages(step: dict[str, Any]) -> list[float]:
    """One number of each row: it is the same for all tokens."""
    assert all(len(set(row)) == 1 for row in step["advantages"])
    return [row[0] for row in step["advantages"]]


@pytest.mark.parametrize("baseline", ["trainer", "exclude"])
def test_the_rules_change_what_they_select_and_no_other_number(trainings: dict[str, Training], baseline: str) -> None:
    for plain, guided in zip(load_trained(trainings, "plain"), load_trained(trainings, baseline), strict=True):
        expected = read_advantages(plain)
        assert len(expected) == 8 and all(expected)
        if baseline == "exclude":  # the rewards 1 and 0.25 are left in the first group
            expected[0], expected[2] = 0.5**0.5, -(0.5**0.5)
        expected[1] = expected[3] = 0.0
        expected[4:] = [advantage / 2 for advantage in expected[4:]]
        assert read_advantages(guided) == pytest.approx(expected, rel=1e-5)
        changed = {"advantages": guided["advantages"], "sample_mask": [1.0, 1.0, 1.0, 0.0, *[1.0] * 4]}
        assert guided == {**plain, **changed}


def test_a_row_of_another_estimator_has_no_advantage_either(trainings: dict[str, Training]) -> None:
    plain, guided = load_trained(trainings, "plain-reinforce")[1], load_trained(trainings, "reinforce")[1]
    assert all(read_advantages(plain)) and plain["advantages"] != load_trained(trainings, "plain")[1]["advantages"]
    assert [bool(advantage) for advantage in read_advantages(guided)] == [True, False, True, False, *[True] * 4]


def test_the_run_has_the_version_the_counts_and_the_rules_of_each_sample(trainings: dict[str, Training]) -> None:
    values = trainings["trainer"].values(2)
    counts = {"version": 3, "samples": 6, "tokens": 48, "rule/again": 1, "rule/half": 4, "rule/skip": 1}
    assert {name: value for name, value in values.items() if name.startswith("guidance/")} == {
        f"guidance/{name}": value for name, value in counts.items()
    }
    rows = trainings["trainer"].rows("train", 2)
    assert [row.get("guidance") for row in rows] == [None, "again", None, "skip", *["half"] * 4]
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75]


@pytest.mark.parametrize("wrong", FAILURES)
def test_failures_do_not_change_the_training(trainings: dict[str, Training], wrong: str) -> None:
    """A mistake of ours; a server that answers late; no server, and a full disk."""
    assert load_trained(trainings, wrong) == load_trained(trainings, "plain")
    assert "Rolloutdeck lost something in guidance.match: NameError" in trainings["raise"].done.stderr
