"""The recipes of `docs/trainers.md` for trainers that write no dump, called as these trainers do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck import Run
from tests.rolloutdeck.support.fake_server import Receiver

PAGE = (Path(__file__).parents[3] / "docs/trainers.md").read_text()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Receiver]:
    receiver = Receiver()
    monkeypatch.setenv("ROLLOUTDECK_URL", receiver.url)
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "rd_x")
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(tmp_path / "spool"))
    yield receiver
    receiver.down()


def run_recipe(heading: str, **names: Any) -> dict[str, Any]:
    """Runs the code below a heading, with the names that the user's script has; returns the names afterwards."""
    section = re.split(r"^## ", PAGE.split(f"\n## {heading}\n")[1], maxsplit=1, flags=re.M)[0]
    code = re.findall(r"^```python\n(.*?)^```$", section, flags=re.M | re.S)[0]
    assert len(re.findall(r"^\S", code, flags=re.M)) <= 5, "a recipe has five lines"
    exec(code, names)  # the code of our own page
    return names


def finish_and_read_calls(run: Run, receiver: Receiver) -> list[tuple[int, str, list[dict[str, Any]]]]:
    """Finishes the run; returns (step, step kind, rows) of each recorded call."""
    run.finish()
    calls = [(query, [json.loads(line) for line in body.splitlines()]) for _, query, body in receiver.dumps]
    return sorted(
        ((int(query["step"]), query.get("step_kind", ""), rows) for query, rows in calls), key=lambda entry: entry[0]
    )


def test_the_torchforge_recipe_records_episodes(receiver: Receiver) -> None:
    """With the fields of `Episode` in apps/grpo/main.py and of `Completion`, meta-pytorch/torchforge 6e77f0b3."""
    torch = pytest.importorskip("torch")
    ids, tokens = torch.tensor([1, 2]), torch.tensor([3, 4])
    completion = SimpleNamespace(
        text="4", prompt_ids=ids, token_ids=tokens, logprobs=torch.tensor([-0.5, -0.25]), stop_reason="stop"
    )
    advantages = torch.tensor([0.5, -0.5])
    episodes = [
        SimpleNamespace(completion=completion, reward=1.0, target="4", advantage=advantage, policy_version=7)
        for advantage in advantages
    ]
    names = run_recipe("torchforge", prompt="2+2?", episodes=episodes)
    ((step, kind, rows),) = finish_and_read_calls(names["run"], receiver)
    assert (step, kind, len(rows)) == (7, "policy_version", 2)
    assert rows[1] == {
        "prompt": "2+2?", "response": "4", "score": 1.0, "ground_truth": "4", "advantages": -0.5,
        "finish_reason": "stop", "prompt_ids": [1, 2], "response_ids": [3, 4], "logprobs": [-0.5, -0.25],
        "policy_version": 7,
    }  # fmt: skip


def correct(completions: Any, answer: Any, **columns: Any) -> list[float]:
    return [float(right in messages[0]["content"]) for messages, right in zip(completions, answer, strict=True)]


def test_the_unsloth_recipe_records_the_calls_of_a_reward_function(receiver: Receiver) -> None:
    """With the keywords of `_calculate_rewards` in TRL 1.16.0."""
    names = run_recipe("unsloth", correct=correct)
    (function,) = names["reward_funcs"]
    conversations = [[{"role": "user", "content": "2+2?"}]] * 2
    answers = [[{"role": "assistant", "content": n}] for n in "45"]
    for split in ("train", "eval"):
        scores = function(
            prompts=conversations, completions=answers, completion_ids=[[1], [2]], answer=["4", "4"], split=[split] * 2,
            trainer_state=SimpleNamespace(global_step=2), log_extra=None, log_metric=None,
        )  # fmt: skip
        assert scores == [1.0, 0.0] and function.__name__ == "correct"
    ((eval_step, _, evaluated), (step, _, rows)) = sorted(
        finish_and_read_calls(names["run"], receiver), key=lambda call: call[0]
    )
    assert (eval_step, step) == (2, 3), "TRL counts a step only after it"
    assert [(row["score"], row["answer"]) for row in rows] == [(1.0, "4"), (0.0, "4")]
    assert (
        rows[1]["prompt"] == conversations[1] and rows[1]["response"] == answers[1] and rows[1]["response_ids"] == [2]
    )
    assert sorted(query["split"] for _, query, _ in receiver.dumps) == ["eval", "train"] and len(evaluated) == 2


def test_a_reward_function_that_is_called_with_other_arguments_still_returns_its_scores(receiver: Receiver) -> None:
    names = run_recipe("unsloth", correct=lambda texts: [1.0])
    assert names["reward_funcs"][0](["4"]) == [1.0]
    assert finish_and_read_calls(names["run"], receiver) == []
