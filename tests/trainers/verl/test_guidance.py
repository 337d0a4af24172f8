"""Guidance rules in real verl, V0 and V1: the rows that they select, and no other number, are changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rolloutdeck.support.guiding import GuidanceServer, build_rules
from tests.trainers.verl.process import Training, train

pytestmark = pytest.mark.trainers

RULES = (
    {"key": "skip", "action": "drop"},
    {"key": "again", "target": "response"},
    {"key": "half", "action": "weight", "value": 0.5},
    {"key": "more", "action": "reward"},  # which has no effect in verl
)
SELECTED: dict[str, Any] = {
    "prompts": [("What is 0 plus 1 ?", [0, 3]), ("What is 1 plus 1 ?", [3]), ("What is 3 plus 1 ?", [2])],
    "responses": [("What is 2 plus 1 ?", "wrong 4", [1])],
}
# The prompt by its right answer; the second response to 0 is "wrong 2".
MASKED, HALVED, NEIGHBOUR = ("sum is 1", "wrong 2", "wrong 4"), ("sum is 4", "wrong 5"), "sum is 3"
MARKS = {**dict.fromkeys(MASKED, "skip"), "wrong 4": "again", **dict.fromkeys(HALVED, "half")}


def list_rows(training: Training) -> list[dict[str, Any]]:
    """The rows of both steps without uids, in an order of their own, and without those that fill up a batch."""
    rows = []
    for number, step in enumerate(training.json("seen.json"), 1):
        own = step["rows"] if "rows" in step else [row for key, row in step.items() if not key.startswith("pad")]
        rows += [{**row, "uid": "", "step": number} for row in own]
    return sorted(rows, key=lambda row: json.dumps([row["step"], row.get("ids", row.get("responses"))]))


def train_guided(script: list[str], folder: Path, baseline: str) -> Training:
    folder.mkdir()
    receiver = GuidanceServer(build_rules(*RULES, baseline=baseline, **SELECTED))
    return train(*script, folder=folder, receiver=receiver, GUIDED="1", ROLLOUTDECK_GUIDANCE="on")


def list_marks(training: Training) -> dict[str, str]:
    rows = [row for step in (1, 2) for row in training.rows("train", step)]
    return {row["response"]: row["guidance"] for row in rows if "guidance" in row}


@pytest.mark.parametrize("script", [["v0.py"], ["v1.py", ""]], ids=["v0", "v1"])
def test_the_rules_change_the_advantages_of_the_rows_that_they_select(script: list[str], tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    plain = train(*script, folder=tmp_path / "alone", BESIDE="unnamed")
    for baseline in ("trainer", "exclude"):
        found = train_guided(script, tmp_path / baseline, baseline)
        responses = {row["response"]: row["advantages"][0] for step in (1, 2) for row in found.rows("train", step)}
        assert len(responses) == 8 and all(responses[name] == 0 for name in MASKED)
        assert list_marks(found) == MARKS
        changed = [(new, old) for new, old in zip(list_rows(found), list_rows(plain), strict=True) if new != old]
        assert len(changed) == (6 if baseline == "exclude" else 5)
        for new, old in changed:
            assert {**new, "advantages": 0} == {**old, "advantages": 0}
        halves = [new["advantages"] for new, old in changed if new["advantages"] == [a / 2 for a in old["advantages"]]]
        assert len([new for new in halves if any(new)]) == 2
        assert len([new for new, _ in changed if not any(new["advantages"])]) == 3
        assert responses[NEIGHBOUR] == pytest.approx(1.0 if baseline == "exclude" else 0.5**0.5, rel=1e-4)
        values = {step: found.values(step) for step in (1, 2)}
        assert [values[step]["guidance/version"] for step in (1, 2)] == [3, 3]
        assert [values[step]["guidance/samples"] for step in (1, 2)] == [2, 3]
        assert values[2]["guidance/rule/again"] == 1 and values[2]["guidance/tokens"] > 3
        assert values[1]["guidance/rule/more"] == 0


def test_all_updates_of_an_async_step_mark_the_rows_that_the_rules_select(tmp_path: Path) -> None:
    found = train_guided(["v1.py", "", "trainer.v1.trainer_mode=separate_async"], tmp_path / "async", "trainer")
    assert list_marks(found) == MARKS
    assert sum(found.values(step)["guidance/samples"] for step in (1, 2)) == len(MARKS)
