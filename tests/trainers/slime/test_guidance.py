"""Guidance rules in slime's own rollout manager: its normalisation of rewards and its conversion to training data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import Receiver
from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules
from tests.trainers.slime.test_slime import require_slime
from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

RULES = (
    {"key": "again", "target": "response"},
    {"key": "half", "action": "weight", "value": 0.5},
    {"key": "skip", "action": "drop", "target": "response"},
    {"key": "tell", "action": "reward", "value": -2.0},
)
SELECTED: dict[str, Any] = {
    "prompts": [("What is 1 + 1?", [1, 3])],
    "responses": [("What is 0 + 1?", "answer 1", [0]), ("What is 0 + 1?", "answer 3", [2])],
}
FAILURES = ("raise", "slow", "gone")


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Training]:
    folder = tmp_path_factory.mktemp("guided")
    receivers: dict[str, Receiver] = {
        name: GuidanceServer(build_rules(*RULES, **SELECTED)) for name in ("trainer", *FAILURES)
    }
    receivers |= {"exclude": GuidanceServer(build_rules(*RULES, baseline="exclude", **SELECTED)), "plain": Receiver()}
    receivers["slow"].delay, extra = 30.0, {name: {"GUIDED": "1"} for name in ("trainer", "exclude", "raise")}
    receivers["gone"].down()
    extra["raise"]["BREAKS"], extra["gone"] = "raise", {"BREAKS": "full"}
    cases = {
        name: {
            "ROLLOUTDECK_URL": receiver.url, "ROLLOUTDECK_SPOOL": str(folder / name), "ROLLOUTDECK_GUIDANCE": "on",
            **extra.get(name, {}),
        }
        for name, receiver in receivers.items()
    }  # fmt: skip
    script = "../../slime/inside/guiding.py"
    done = train(script, folder=folder, SLIME=require_slime(), CASES=json.dumps(cases), ROLLOUTDECK_TOKENS="all").done
    return {name: Training(receiver, folder, done) for name, receiver in receivers.items()}


def load_trained(trainings: dict[str, Training], case: str) -> list[dict[str, Any]]:
    trained: list[dict[str, Any]] = trainings[case].json(f"{case}.json")["trained"]
    return trained


def normalize(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]


@pytest.mark.parametrize("baseline", ["trainer", "exclude"])
def test_the_rules_change_what_they_select_and_no_other_number(trainings: dict[str, Training], baseline: str) -> None:
    for plain, guided in zip(load_trained(trainings, "plain")[:2], load_trained(trainings, baseline)[:2], strict=True):
        expected = list(plain["rewards"])
        assert len(expected) == 8 and all(expected)
        if baseline == "exclude":
            expected[0], expected[2] = normalize([1.0, 0.25])
        expected[1] = expected[3] = 0.0
        expected[4:] = [reward / 2 for reward in expected[4:]]
        assert guided["rewards"] == pytest.approx(expected, rel=1e-6)
        masks = [[0] * 8 if index == 3 else mask for index, mask in enumerate(plain["loss_masks"])]
        changed = {"rewards": guided["rewards"], "loss_masks": masks, "rollout_mask_sums": list(map(sum, masks))}
        assert guided == {**plain, **changed}


def test_another_estimator_leaves_masked_samples_out_of_the_loss(trainings: dict[str, Training]) -> None:
    plain, guided = load_trained(trainings, "plain")[2], load_trained(trainings, "trainer")[2]
    assert [sum(mask) for mask in guided["loss_masks"]] == [7, 0, 7, 0, *[7] * 4]
    assert guided["rewards"] == plain["rewards"] == plain["raw_reward"]
    assert "Rules with the action `weight` have no effect with reinforce_plus_plus" in trainings["trainer"].done.stderr


def test_the_run_has_the_version_the_counts_and_the_rules_of_each_sample(trainings: dict[str, Training]) -> None:
    values = trainings["trainer"].values(1)
    counts = {"version": 3, "samples": 6, "tokens": 42, "rule/again": 1, "rule/half": 4, "rule/skip": 1, "rule/tell": 4}
    assert {name: value for name, value in values.items() if name.startswith("guidance/")} == {
        f"guidance/{name}": value for name, value in counts.items()
    }
    marks = [row.get("guidance") for row in trainings["trainer"].rows("train", 1)]
    assert marks == [None, "again", None, "skip", *["half, tell"] * 4]
    reward_guidance = trainings["trainer"].json("trainer.json")["told"]
    assert reward_guidance[:8] == [*[{}] * 4, *[{"tell": -2.0}] * 4]


@pytest.mark.parametrize("wrong", FAILURES)
def test_failures_do_not_change_the_training(trainings: dict[str, Training], wrong: str) -> None:
    """A mistake of ours; a server that answers late; no server, and a full disk."""
    assert load_trained(trainings, wrong) == load_trained(trainings, "plain")
    assert "Rolloutdeck lost something in guidance._apply: NameError" in trainings["raise"].done.stderr
