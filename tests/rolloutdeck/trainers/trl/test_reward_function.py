"""A reward function that records what it scores."""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers.trl.plugin.reward_function import record_reward


@pytest.mark.parametrize("is_async", [False, True])
def test_a_recorded_reward_function_returns_the_same_scores_and_its_calls_are_recorded(is_async: bool) -> None:
    logged: list[Any] = []
    run: Any = SimpleNamespace(log_samples=lambda rows, step, split: logged.append((rows["score"], step, split)))

    def correct(**columns: Any) -> list[float]:
        return [float(text == "2") for text in columns["completions"]]

    async def correct_later(**columns: Any) -> list[float]:
        await asyncio.sleep(0)
        return correct(**columns)

    function = record_reward(run, correct_later if is_async else correct)
    columns = {"prompts": ["1+1", "1+1"], "completions": ["2", "3"], "trainer_state": SimpleNamespace(global_step=6)}
    assert inspect.iscoroutinefunction(function) == is_async  # TRL asks this
    scores = asyncio.run(function(**columns)) if is_async else function(**columns)
    assert scores == [1.0, 0.0] and logged == [([1.0, 0.0], 7, "train")]


@pytest.mark.parametrize(("split", "step"), [("train", 7), ("eval", 6)])
def test_an_eval_is_recorded_at_the_step_after_which_it_runs(split: str, step: int) -> None:
    logged: list[Any] = []
    run: Any = SimpleNamespace(log_samples=lambda rows, step, split: logged.append((step, split)))
    columns = {"prompts": ["1+1"], "completions": ["2"], "split": [split]}
    record_reward(run, lambda **_: [1.0])(**columns, trainer_state=SimpleNamespace(global_step=6))
    assert logged == [(step, split)]


def test_equal_answers_of_two_calls_in_a_step_are_two_samples() -> None:
    logged: list[Any] = []
    run: Any = SimpleNamespace(log_samples=lambda rows, step, split: logged.append(rows.get("earlier_equal_samples")))
    function = record_reward(run, lambda **columns: [1.0] * len(columns["completions"]))
    for step, answers in ((6, ["2", "3"]), (6, ["2", "4", "2"]), (7, ["2"])):
        state = SimpleNamespace(global_step=step)
        function(prompts=["1+1"] * len(answers), completions=answers, trainer_state=state)
    assert logged == [None, [1, 0, 1], None]
