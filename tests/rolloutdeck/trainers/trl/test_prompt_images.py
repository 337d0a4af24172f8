"""Prompts with images are not replayed by a `rollout_func`, since TRL would train without the images."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.rolloutdeck.support.plans import PlanServer

pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import (  # it needs torch
    IDS,
    PINNED,
    PROMPTS,
    Trainer,
    attach_callback,
    end_training,
)

WITH_IMAGE = [{"role": "user", "content": [{"type": "image", "image": "cat.png"}, {"type": "text", "text": "what?"}]}]
WITHOUT_IMAGE = [{"role": "user", "content": [{"type": "text", "text": "what?"}]}]


@pytest.fixture
def trainer_class(monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """A stand-in for TRL's class; its trainers show whether their last generation came from the `rollout_func`."""

    class GRPOTrainer(Trainer):
        asked_function = False

        def call_rollout_func(self) -> list[list[int]]:
            self.asked_function = True
            return super().call_rollout_func()

        def generate(self, rows: list[dict[str, Any]], *, training: bool = True) -> bool:
            self.model.training, self.state.global_step, self.asked_function = training, 1, False
            self._generate_and_score_completions(rows)
            return self.asked_function

    module = ModuleType("trl.trainer.grpo_trainer")
    vars(module)["GRPOTrainer"] = GRPOTrainer
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return GRPOTrainer


def build_pinned_step() -> bytes:
    rows = [
        {"prompt": text, "prompt_ids": [5], "completion_ids": ids} for text, ids in zip(PROMPTS, PINNED, strict=True)
    ]
    return json.dumps({"format": "trl-rollout", "rows": rows}).encode()


def build_rows(prompts: list[Any], **columns: Any) -> list[dict[str, Any]]:
    return [{"prompt": prompt, **columns} for prompt in prompts]


def test_a_step_with_images_inside_its_prompts_is_generated_by_trl_itself(
    trl: SimpleNamespace, trainer_class: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = PlanServer(build_pinned_step(), 2, "rollout-0.json")
    monkeypatch.setenv("ROLLOUTDECK_URL", server.url)
    trainer = trainer_class(rollout_func=trl.replaying())
    callback = attach_callback(trl, trainer)
    rows = build_rows([WITHOUT_IMAGE, WITHOUT_IMAGE, WITHOUT_IMAGE, WITH_IMAGE])
    assert not trainer.generate(rows) and not trainer.generate(rows, training=False)
    assert trainer.generate(build_rows([WITHOUT_IMAGE] * 4))  # it sees the function again
    end_training(callback)
    server.down()
    events = [(body["step"], body["outcome"], body["reason"]) for body in server.posted("/replays/")]
    assert events[0] == (2, "refused", "its prompts contain images, which TRL would drop if it were replayed")


@pytest.mark.parametrize(("others_have_images", "expected"), [(False, True), (True, False)])
def test_all_processes_generate_if_one_has_images_in_its_prompts(
    trl: SimpleNamespace, second_process: SimpleNamespace, trainer_class: Any, others_have_images: bool, expected: bool
) -> None:
    second_process.objections = [others_have_images]
    trainer = trainer_class(rollout_func=trl.replaying(), world=2)
    assert trainer.generate(build_rows([WITHOUT_IMAGE] * 4), training=False) == expected


def test_images_of_a_column_and_a_custom_rollout_func_change_nothing(trl: SimpleNamespace, trainer_class: Any) -> None:
    trainer = trainer_class(rollout_func=trl.replaying())
    assert trainer.generate(build_rows([WITH_IMAGE] * 4, images=["cat.png"]))

    def make_own_batch(prompts: Any, trainer: Any) -> dict[str, Any]:
        return {"prompt_ids": [[5]] * 4, "completion_ids": IDS, "logprobs": None}

    own = trainer_class(rollout_func=trl.replaying(otherwise=make_own_batch))
    assert own.generate(build_rows([WITH_IMAGE] * 4))
