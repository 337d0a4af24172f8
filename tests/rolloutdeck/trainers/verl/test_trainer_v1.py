"""The plug-in in the V1 trainer, without verl. With verl: `tests/trainers/verl/test_plugin.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers.common import TokenSelection
from rolloutdeck.trainers.verl.plugin import trainer_v1


class FakeRows:
    """Stands in for the rows of a batch, whose data is in a queue. All have the same prompt."""

    def __init__(self, queue: Any, answers: Sequence[str]) -> None:
        self.answers = answers

    def groups(self) -> list[str]:
        return list(self.answers)

    def read_tokens(self, indices: Sequence[int]) -> None: ...

    def count_token_groups(self) -> int:
        return 0

    def rows(self, max_tokens: int | None) -> list[dict[str, Any]]:
        return [{"response": answer} for answer in self.answers]

    def add_texts(self, rows: Sequence[dict[str, Any]], tokenizer: Any) -> None:
        for row in rows:
            row["prompt"] = "2+2?"


class FakeBuffer:
    def sample(self, answers: Sequence[str]) -> Sequence[str]:
        return answers


def test_equal_answers_of_two_batches_of_a_validation_are_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[list[dict[str, Any]]] = []
    session = SimpleNamespace(
        measure_blocking=nullcontext, count_capture_errors=nullcontext, tokenizer=lambda tokenizer: tokenizer,
        selection=TokenSelection(0),
        submit=lambda job: job(), run=SimpleNamespace(log_samples=lambda rows, **_: logged.append(rows)),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "transfer_queue", ModuleType("transfer_queue"))
    monkeypatch.setattr(trainer_v1, "JaggedBatch", FakeRows)
    monkeypatch.setattr(trainer_v1, "find_verl_session", lambda config: session)
    loops, buffer = SimpleNamespace(reward_loop_worker_handles=[1]), FakeBuffer()
    trainer = SimpleNamespace(
        config={"data": {}}, global_steps=4, tokenizer=None, reward_loop_manager=loops, replay_buffer=buffer
    )
    for _ in range(2):  # a repeated validation has the same samples again
        with trainer_v1.watch_validation(trainer):
            buffer.sample(["4", "5", "4"]), buffer.sample(["4", "6"])
    earlier = [[row.get("earlier_equal_samples", 0) for row in rows] for rows in logged]
    assert earlier == [[0, 0, 0], [2, 0]] * 2
