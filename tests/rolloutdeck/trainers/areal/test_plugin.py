"""What `record` and the recording workflow record of a training of AReaL, with stand-ins for AReaL's modules."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rolloutdeck.trainers import areal
from tests.rolloutdeck.trainers.conftest import Recorder

CONTEXT = SimpleNamespace(is_eval=False, task_id=7, sample_idx=1)
WORKFLOW = "rolloutdeck.trainers.areal.workflow.RecordingWorkflow"


class RolloutWorkflow:
    pass


class Tokenizer:
    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


class Workflow(RolloutWorkflow):
    def __init__(self, result: Any, tokenizer: Any = None) -> None:
        self.result, self.tokenizer = result, tokenizer or Tokenizer()

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        return self.result


class Agent:
    async def run(self, data: Any) -> float:
        return 1.0


@pytest.fixture
def recording_workflow(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class of the recording workflow."""
    names = {"areal": {"workflow_context": SimpleNamespace(get=lambda: CONTEXT)}}
    names |= {"areal.api": {"RolloutWorkflow": RolloutWorkflow}, "areal.utils": {}}
    names["areal.utils.dynamic_import"] = {"import_from_string": lambda path: globals()[path.rpartition(".")[2]]}
    for name, values in names.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("RUN_ID", "ATTEMPT", "PROJECT", "RUN"):
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", "x")  # removed again after the test
        monkeypatch.delenv(f"ROLLOUTDECK_{name}")
    monkeypatch.delitem(sys.modules, "rolloutdeck.trainers.areal.workflow", raising=False)
    yield importlib.import_module("rolloutdeck.trainers.areal.workflow").RecordingWorkflow
    sys.modules.pop("rolloutdeck.trainers.areal.workflow", None)


def build_trajectory(**options: Any) -> dict[str, Any]:
    """A trajectory as `RLVRWorkflow` returns it, with two tokens of padding."""
    return {
        "input_ids": np.array([[1, 2, 3, 4, 0, 0]]), "loss_mask": np.array([[0, 0, 1, 1, 0, 0]]),
        "attention_mask": np.array([[True] * 4 + [False] * 2]), "logprobs": np.array([[0, 0, -0.5, -0.25, 0, 0]]),
        "versions": np.array([[-1, -1, 4, 5, 0, 0]]), "rewards": np.array([1.0]), **options,
    }  # fmt: skip


def build_trainer() -> Any:
    config = SimpleNamespace(experiment_name="math", trial_name="trial0", cluster=SimpleNamespace(fileroot=""), seed=3)
    committed: list[Any] = []
    logger = SimpleNamespace(commit=lambda *values: committed.append(values))
    return SimpleNamespace(config=config, stats_logger=logger, committed=committed)


def run_episode(workflow: Any, data: dict[str, Any] | None = None) -> Any:
    return asyncio.run(workflow.arun_episode(None, data or {"messages": [], "answer": 5, "image": "x"}))


def test_an_episode_is_a_row_of_the_version_that_wrote_it_last(recording_workflow: Any, recorder: Recorder) -> None:
    result = build_trajectory()
    assert run_episode(recording_workflow(f"{__name__}.Workflow", {"result": result})) is result
    recorder.finish()
    assert recorder.rows() == {5: [{
        "prompt": "1 2", "response": "3 4", "response_length": 2, "score": 1.0, "policy_version": 4,
        "weight_versions": [4, 5], "answer": 5, "ground_truth": "5", "task_id": 7, "prompt_ids": [1, 2],
        "response_ids": [3, 4], "response_mask": [1, 1], "logprobs": [-0.5, -0.25],
    }]}  # fmt: skip
    assert {query["step_kind"] for _, query, _ in recorder.receiver.dumps} == {"policy_version"}


def test_columns_of_the_data_set_do_not_replace_fields_of_the_training(
    recording_workflow: Any, recorder: Recorder
) -> None:
    names = ("index", "group", "trajectory", "score", "turn", "policy_version", "task_id")
    run_episode(
        recording_workflow(Workflow(build_trajectory())), {"messages": [], "solution": "5", **dict.fromkeys(names, 9)}
    )
    recorder.finish()
    [row] = recorder.rows()[5]
    assert (row["score"], row["policy_version"], row["task_id"], row["ground_truth"]) == (1.0, 4, 7, "5")
    assert not {"index", "group", "trajectory", "turn"} & set(row)
    assert {name: row.get(f"dataset_{name}") for name in names} == dict.fromkeys(names, 9)


def test_the_turns_of_an_agent_in_an_eval_are_rows_of_one_trajectory(
    recording_workflow: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CONTEXT, "is_eval", True)
    interactions = {name: SimpleNamespace(to_tensor_dict=build_trajectory) for name in ("a", "b")}
    run_episode(recording_workflow(Workflow(interactions)))
    run_episode(recording_workflow(Workflow(interactions)))
    recorder.finish()
    rows = recorder.rows("eval")[5]
    assert [row["turn"] for row in rows] == [0, 1, 0, 1] and not recorder.rows()
    first, second, third, fourth = [row["trajectory"] for row in rows]
    assert first == second != third == fourth


def test_the_arguments_name_the_recording_workflow_and_the_run(recording_workflow: Any, recorder: Recorder) -> None:
    training = build_trainer()
    arguments = areal.record(training, workflow=Workflow, workflow_kwargs={"a": 1}, eval_workflow=None, total_epochs=2)
    identity = arguments["workflow_kwargs"].pop("identity")
    assert arguments == {
        "workflow": WORKFLOW, "workflow_kwargs": {"workflow": Workflow, "workflow_kwargs": {"a": 1}},
        "eval_workflow": None, "total_epochs": 2,
    }  # fmt: skip
    training.stats_logger.commit(0, 1, 9, [{"loss": 0.5, "loss__count": 3}, {"reward": 1.0}])
    recorder.finish()
    assert training.committed == [(0, 1, 9, [{"loss": 0.5, "loss__count": 3}, {"reward": 1.0}])]
    assert recorder.metrics(9) == {"loss": 0.5, "reward": 1.0}
    run = recorder.run()
    assert (run["project"], run["name"], run["framework"]) == ("math", "trial0", "areal")
    assert identity == {"RUN_ID": run["uid"], "ATTEMPT": run["attempt"], "PROJECT": "math", "RUN": "trial0"}


def test_an_agent_is_trained_as_before_and_its_samples_are_not_recorded(
    recording_workflow: Any, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    assert areal.record(build_trainer(), workflow=Agent, workflow_kwargs={}) == {
        "workflow": Agent,
        "workflow_kwargs": {},
    }
    assert "rollout.dump_to_file" in caplog.text


@pytest.mark.parametrize(
    "result", [build_trajectory(rewards=None), build_trajectory(attention_mask=np.array([True])), {}, {"a": 5}, None]
)
def test_a_result_that_can_not_be_recorded_is_returned_as_it_is(
    result: Any, recording_workflow: Any, recorder: Recorder
) -> None:
    assert run_episode(recording_workflow(Workflow(result))) is result
    recorder.finish()
    assert not recorder.rows()


def test_record_returns_the_arguments_unchanged_for_an_unknown_trainer(recorder: Recorder) -> None:
    assert areal.record(5, workflow="a.b") == {"workflow": "a.b"}
