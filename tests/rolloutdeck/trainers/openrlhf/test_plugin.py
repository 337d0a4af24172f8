"""The methods of OpenRLHF that the plug-in wraps, in stand-ins for OpenRLHF's modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rolloutdeck.trainers.common import patching
from rolloutdeck.trainers.openrlhf import plugin
from tests.rolloutdeck.trainers.conftest import Recorder

SOURCES = {
    "ppo_trainer": """
class BasePPOTrainer:
    def __init__(self, args, experience_maker):
        self.args, self.experience_maker, self.saved = args, experience_maker, []
    def train_step(self, rollout_samples, global_step):
        self.experience_maker.make_experience_batch(rollout_samples)
        return {"kl": 0.5, "generated_samples": ["text", 1.0]}, global_step + 1
    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        self.saved.append((global_step, logs_dict))
    def save_best_checkpoint(self, eval_metrics, global_step, client_states=None):
        self.saved.append((global_step, eval_metrics))
""",
    "ppo_utils.experience_maker": """
class RemoteExperienceMaker:
    def __init__(self, args, tokenizer, experiences):
        self.args, self.tokenizer, self.experiences = args, tokenizer, experiences
    def make_experience_batch(self, rollout_samples):
        return self.experiences
""",
    "ppo_utils.samples_generator": """
class SamplesGenerator:
    def __init__(self, args, tokenizer, experiences):
        self.args, self.tokenizer, self.experiences = args, tokenizer, experiences
    def generate_eval_samples(self, **generate_kwargs):
        return self.experiences
""",
}


class Tokenizer:
    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


def build_arguments() -> SimpleNamespace:
    wandb = SimpleNamespace(project="math", run_name="ppo", key="a secret")
    return SimpleNamespace(logger=SimpleNamespace(wandb=wandb), ckpt=SimpleNamespace(path=""), seed=3)


def build_experience(**options: Any) -> SimpleNamespace:
    """Two samples of 5 tokens: prompts of 2 and responses of 2, padded on the right and on the left."""
    values = {
        "sequences": np.array([[1, 2, 3, 4, 0], [0, 5, 6, 7, 8]]),
        "attention_mask": np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]),
        "action_mask": np.array([[0, 1, 1, 0], [0, 0, 1, 1]]),
        "rollout_log_probs": np.array([[0.0, -0.5, -0.25, 0.0], [0.0, 0.0, -0.125, -1.0]]),
        "advantages": np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, -0.5, -0.5]]),
        "prompts": ["What?", "Who?"], "labels": ["3 4", 7], "rewards": None, "truncated": np.array([False, True]),
        "images": [None, ["7.png"]],
        "info": {"reward": np.array([1.0, 0.0]), "kl": np.array([0.25, 0.5])},
    }  # fmt: skip
    return SimpleNamespace(**{**values, **options})


@pytest.fixture
def openrlhf(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The three classes, imported after Ray has called our hook."""
    for name, source in SOURCES.items():
        path = tmp_path / "openrlhf/trainer" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(patching.PatchingFinder, "waiting", {})
    plugin.prepare_process()
    modules = [sys.modules.get(name) or __import__(name, fromlist=["_"]) for name in
               (plugin.TRAINER, plugin.EXPERIENCE_MAKER, plugin.GENERATOR)]  # fmt: skip
    yield SimpleNamespace(
        Trainer=modules[0].BasePPOTrainer, Maker=modules[1].RemoteExperienceMaker, Generator=modules[2].SamplesGenerator
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "openrlhf"]:
        del sys.modules[name]


def train_one_step(openrlhf: SimpleNamespace, experiences: list[Any]) -> Any:
    """Runs a step as OpenRLHF's `fit` does."""
    args = build_arguments()
    trainer = openrlhf.Trainer(args, openrlhf.Maker(args, Tokenizer(), experiences))
    status, global_step = trainer.train_step([], 6)
    trainer.save_logs_and_checkpoints(global_step, status, {})
    return trainer


def test_the_samples_of_a_step_have_the_number_of_its_metrics(openrlhf: SimpleNamespace, recorder: Recorder) -> None:
    trainer = train_one_step(openrlhf, [build_experience()])
    recorder.finish()
    assert recorder.rows() == {7: [
        {
            "prompt": "What?", "response": "3 4", "response_length": 2, "ground_truth": "3 4", "score": 1.0,
            "truncated": False, "metrics": {"reward": 1.0, "kl": 0.25}, "advantages": [0.5, 0.5], "prompt_ids": [1, 2],
            "response_ids": [3, 4], "response_mask": [1, 1], "logprobs": [-0.5, -0.25],
        },
        {
            "prompt": "Who?", "response": "7 8", "response_length": 2, "ground_truth": "7", "score": 0.0,
            "images": ["7.png"],
            "truncated": True, "metrics": {"kl": 0.5, "reward": 0.0}, "advantages": [-0.5, -0.5], "prompt_ids": [5, 6],
            "response_ids": [7, 8], "response_mask": [1, 1], "logprobs": [-0.125, -1.0],
        },
    ]}  # fmt: skip
    assert recorder.metrics(7) == {"train/kl": 0.5}
    assert trainer.saved == [(7, {"kl": 0.5, "generated_samples": ["text", 1.0]})]


def test_an_eval_has_the_step_of_the_caller(openrlhf: SimpleNamespace, recorder: Recorder) -> None:
    generator = openrlhf.Generator(build_arguments(), Tokenizer(), [build_experience()])
    trainer = openrlhf.Trainer(build_arguments(), None)

    def evaluate(global_step: int) -> Any:
        return generator.generate_eval_samples(temperature=0.0)

    assert len(evaluate(global_step=20)) == 1
    trainer.save_best_checkpoint({"eval_math_pass1": 0.5}, 20)
    recorder.finish()
    assert [row["score"] for row in recorder.rows("eval")[20]] == [1.0, 0.0]
    assert recorder.metrics(20) == {"eval/eval_math_pass1": 0.5}


def test_the_tokenizer_is_copied_once(openrlhf: SimpleNamespace, recorder: Recorder) -> None:
    copies: list[Tokenizer] = []

    class CountingTokenizer(Tokenizer):
        def __deepcopy__(self, memo: Any) -> Tokenizer:
            copies.append(Tokenizer())
            return copies[-1]

    args, tokenizer = build_arguments(), CountingTokenizer()
    trainer = openrlhf.Trainer(args, openrlhf.Maker(args, tokenizer, [build_experience()]))
    for step in range(3):
        trainer.train_step([], step)
    recorder.finish()
    assert sorted(recorder.rows()) == [1, 2, 3] and len(copies) == 1


def test_the_run_has_openrlhfs_names_and_arguments_without_the_key(
    openrlhf: SimpleNamespace, recorder: Recorder
) -> None:
    train_one_step(openrlhf, [build_experience()])
    recorder.finish()
    run = recorder.run()
    assert (run["project"], run["name"], run["framework"]) == ("math", "ppo", "openrlhf")
    assert run["config"]["logger"] == {"wandb": {"project": "math", "run_name": "ppo"}} and run["config"]["seed"] == 3


@pytest.mark.parametrize("broken", [[build_experience(sequences=None)], [build_experience(prompts=5)], [5], None])
def test_samples_that_can_not_be_recorded_do_not_stop_the_training(
    broken: Any, openrlhf: SimpleNamespace, recorder: Recorder
) -> None:
    assert train_one_step(openrlhf, broken).saved
    recorder.finish()
    assert recorder.metrics(7) == {"train/kl": 0.5}
