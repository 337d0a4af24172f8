"""What `record` records of the generator and the tracker of a SkyRL experiment."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rolloutdeck.trainers import skyrl
from tests.rolloutdeck.trainers.conftest import Recorder


@dataclass
class Trajectory:
    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


class Tokenizer:
    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(str(number) for number in ids if number or not skip_special_tokens)


class Generator:
    def __init__(self, output: dict[str, Any]) -> None:
        self.output = output

    async def generate(self, input_batch: dict[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        return self.output


class Experiment:
    """The methods of `BasePPOExp` that `record` uses; a run is one generation and one log."""

    def __init__(self, batch: dict[str, Any], output: dict[str, Any], error: Exception | None = None) -> None:
        trainer = SimpleNamespace(project_name="math", run_name="sky", ckpt_path="")
        self.cfg, self.tokenizer = SimpleNamespace(trainer=trainer, seed=7), Tokenizer()
        self.batch, self.output, self.error = batch, output, error
        self.logged: list[Any] = []

    def get_generator(self) -> Generator:
        return Generator(self.output)

    def get_tracker(self) -> Any:
        return SimpleNamespace(log=lambda data, step, commit=False: self.logged.append((data, step, commit)))

    def run(self) -> Any:
        output = asyncio.run(self.get_generator().generate(self.batch, disable_tqdm=True))
        output["rewards"] = [[0.0, reward] for reward in output["rewards"]]  # as SkyRL's trainer replaces them
        self.get_tracker().log({"reward/avg_raw_reward": 0.5}, step=3, commit=True)
        if self.error:
            raise self.error
        return output


def build_batch(phase: str = "train", step: int | None = 3, **options: Any) -> dict[str, Any]:
    prompts = [[{"role": "user", "content": f"question {row // 2}"}] for row in range(4)]
    extras = [{"reward_spec": {"ground_truth": row // 2}, "data_source": "gsm8k"} for row in range(4)]
    return {
        "prompts": prompts, "env_classes": ["gsm8k"] * 4, "env_extras": extras,
        "trajectory_ids": [Trajectory(f"uid{row // 2}", row % 2) for row in range(4)],
        "batch_metadata": SimpleNamespace(global_step=step, training_phase=phase), **options,
    }  # fmt: skip


def build_output(**options: Any) -> dict[str, Any]:
    return {
        "prompt_token_ids": [[1, 2]] * 4, "response_ids": [[10 + row, 0] for row in range(4)],
        "rewards": [0.0, 1.0, 0.0, 1.0], "loss_masks": [[1, 1]] * 4, "stop_reasons": ["stop", "length"] * 2,
        "rollout_logprobs": [[-0.5, -0.25]] * 4, "trajectory_ids": None, "rollout_metrics": {}, **options,
    }  # fmt: skip


def test_a_generation_is_recorded_with_its_rewards_groups_and_tokens(recorder: Recorder) -> None:
    experiment = skyrl.record(Experiment(build_batch(), build_output()))
    assert experiment.run()["rewards"][1] == [0.0, 1.0]
    rows = recorder.rows()[3]
    assert rows[1] == {
        "prompt": [{"role": "user", "content": "question 0"}], "response": "11", "response_length": 2, "score": 1.0,
        "group": "uid0", "index": 1, "finish_reason": "length", "truncated": True, "ground_truth": "0",
        "data_source": "gsm8k", "reward_spec": {"ground_truth": 0}, "env_class": "gsm8k", "prompt_ids": [1, 2],
        "response_ids": [11, 0], "response_mask": [1, 1], "logprobs": [-0.5, -0.25],
    }  # fmt: skip
    assert [(row["group"], row["index"], row["score"]) for row in rows] == [
        ("uid0", 0, 0.0), ("uid0", 1, 1.0), ("uid1", 0, 0.0), ("uid1", 1, 1.0),
    ]  # fmt: skip


def test_columns_of_the_data_set_do_not_replace_fields_of_the_training(recorder: Recorder) -> None:
    names = ("score", "group", "index", "trajectory", "turn", "rewards", "advantages", "response_ids")
    columns = {"ground_truth": "4", "level": 3, "env_class": "math", "prompt": "q", **dict.fromkeys(names, 9)}
    skyrl.record(Experiment(build_batch(env_extras=[columns] * 4), build_output())).run()
    row = recorder.rows()[3][1]
    assert (row["score"], row["group"], row["index"], row["response_ids"]) == (1.0, "uid0", 1, [11, 0])
    assert {name: row.get(f"dataset_{name}") for name in names} == dict.fromkeys(names, 9)
    assert not {"trajectory", "turn", "rewards", "advantages"} & set(row)
    assert (row["ground_truth"], row["level"], row["env_class"]) == ("4", 3, "gsm8k")


def test_metrics_reach_skyrls_tracker_and_the_run_which_ends_with_the_training(recorder: Recorder) -> None:
    experiment = skyrl.record(Experiment(build_batch(), build_output()))
    experiment.run()
    assert experiment.logged == [({"reward/avg_raw_reward": 0.5}, 3, True)]
    assert recorder.metrics(3) == {"reward/avg_raw_reward": 0.5}
    run = recorder.run()
    assert (run["project"], run["name"], run["framework"], run["config"]["seed"]) == ("math", "sky", "skyrl", 7)
    assert [body["outcome"] for body in recorder.receiver.posted("/finish/")] == ["finished"]


def test_an_error_of_the_training_is_passed_on_and_the_run_has_failed(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="out of memory"):
        skyrl.record(Experiment(build_batch(), build_output(), ValueError("out of memory"))).run()
    assert [body["outcome"] for body in recorder.receiver.posted("/finish/")] == ["failed"]


@pytest.mark.parametrize(("step", "expected_step"), [(3, 3), (None, 0)])
def test_an_eval_is_recorded_as_eval_at_step_0_if_there_is_no_training(
    step: int | None, expected_step: int, recorder: Recorder
) -> None:
    skyrl.record(Experiment(build_batch("eval", step), build_output())).run()
    assert list(recorder.rows("eval")) == [expected_step] and not recorder.rows()


def test_the_turns_of_a_trajectory_are_rows_with_the_prompt_of_each_turn(recorder: Recorder) -> None:
    trajectories = [Trajectory("uid0", 0), Trajectory("uid0", 0), Trajectory("uid1", 1), Trajectory("uid1", 1)]
    prompts = [[1, 2], [1, 2, 10, 5], [1, 2], [1, 2, 12, 5]]
    steps = build_output(trajectory_ids=trajectories, prompt_token_ids=prompts, rewards=[[0.0, 0.0], [0.0, 1.0]] * 2)
    experiment = Experiment(build_batch(), steps)
    experiment.run = lambda: asyncio.run(experiment.get_generator().generate(experiment.batch))  # type: ignore[method-assign]
    skyrl.record(experiment).run()
    rows = recorder.rows()[3]
    assert [(row["trajectory"], row["turn"], row["score"]) for row in rows] == [
        ("uid0_0", 0, 0.0), ("uid0_0", 1, 1.0), ("uid1_1", 0, 0.0), ("uid1_1", 1, 1.0),
    ]  # fmt: skip
    assert [row["prompt"] for row in rows[1:3]] == ["1 2 10 5", [{"role": "user", "content": "question 1"}]]


def build_experiment(values: dict[str, Any]) -> Experiment:
    return Experiment(build_batch(), build_output(**values))


@pytest.mark.parametrize(
    "build",
    [
        lambda: build_experiment({"rewards": ["a", "b", "c", "d"]}),
        lambda: build_experiment({"prompt_token_ids": None}),
        lambda: Experiment(build_batch(batch_metadata=None), build_output()),
        lambda: Experiment(build_batch(prompts=5), build_output()),
    ],
)
def test_a_generation_that_can_not_be_recorded_does_not_stop_the_training(
    build: Callable[[], Experiment], recorder: Recorder
) -> None:
    experiment = skyrl.record(build())
    assert experiment.run() is experiment.output and experiment.logged


def test_an_experiment_of_another_kind_is_returned_unchanged(recorder: Recorder) -> None:
    assert skyrl.record(5) == 5


def test_the_start_script_passes_skyrl_its_arguments_and_our_variables_to_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []

    def remote(**options: Any) -> Any:
        variables = options["runtime_env"]["env_vars"]
        return lambda function: SimpleNamespace(remote=lambda *args: started.append((function, *args, variables)))

    config = SimpleNamespace(from_cli_overrides=lambda words: words)
    names = {
        "ray": {"remote": remote, "get": lambda result: result}, "skyrl": {}, "skyrl.train": {},
        "skyrl.train.config": {"SkyRLTrainConfig": config}, "skyrl.train.utils": {"validate_cfg": lambda config: None},
        "skyrl.train.utils.utils": {"initialize_ray": lambda config: None},
    }  # fmt: skip
    for name, values in names.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("ROLLOUTDECK_RUN", "sky")
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "secret")
    monkeypatch.setattr(
        sys, "argv", ["x", "trainer.override_entrypoint=rolloutdeck.trainers.skyrl", "trainer.epochs=1"]
    )
    skyrl.main()
    [(function, words, token, variables)] = started
    assert (function.__name__, words, token) == ("run_experiment", ["trainer.epochs=1"], "secret")
    assert "ROLLOUTDECK_TOKEN" not in variables, "Ray shows variables in its dashboard"
    assert variables["ROLLOUTDECK_RUN"] == "sky" and all(name.startswith("ROLLOUTDECK_") for name in variables)
