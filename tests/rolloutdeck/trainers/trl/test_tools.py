"""Steps of TRL whose answers called tools are kept with the results and replayed without calling the tools. With a
real trainer: `tests/trainers/trl/test_replay.py`."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.rolloutdeck.support.fake_server import Receiver

pytest.importorskip("torch")

from tests.rolloutdeck.support.fake_trl import ToolTrainer, Trainer, add, attach_callback, end_training

IDS = [[7, 8], [7], [7, 0], [4]]
MESSAGES = [{"role": "assistant", "content": "?"}, {"role": "tool", "name": "add", "content": "3"}]


def generate_batch(prompts: Any, trainer: Any) -> dict[str, Any]:
    trainer.generated += 1
    return {"prompt_ids": [[5]] * 4, "completion_ids": [list(ids) for ids in IDS], "logprobs": None}


def store_step(trl: SimpleNamespace, trainer: Trainer, folder: Path) -> Path:
    """Runs step 1 of a trainer that keeps its steps; returns the path of its file."""
    trainer.rollout_func = generate_batch
    callback = attach_callback(trl, trainer, keep=folder)
    trainer.step(at=0)
    end_training(callback)
    return folder / "step_000001/rollout-0.json"


@pytest.mark.parametrize("is_described", [True, False])
def test_rows_have_the_tools_that_the_model_saw(
    trl: SimpleNamespace, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch, is_described: bool
) -> None:
    def describe(tool: Any) -> dict[str, Any]:
        if not is_described:
            raise ValueError("no type hints")
        return {"type": "function", "function": {"name": tool.__name__}}

    utils = ModuleType("transformers.utils")
    vars(utils)["get_json_schema"] = describe
    monkeypatch.setitem(sys.modules, "transformers.utils", utils)
    search_tool = {"type": "function", "function": {"name": "search"}}
    trainer = ToolTrainer(tools=[add, search_tool], columns={"tools": "of the data set"}, rollout_func=generate_batch)
    callback = attach_callback(trl, trainer)
    trainer.step(at=0)
    end_training(callback)
    row = json.loads(connected_receiver.dumps[0][2].splitlines()[0])
    tools = [{"type": "function", "function": {"name": "add"}}, search_tool]
    found = (row["tools"], row.get("dataset_tools"))
    assert found == ((tools, "of the data set") if is_described else ("of the data set", None))


@pytest.fixture
def step_folder(trl: SimpleNamespace, tmp_path: Path) -> Path:
    trainer = ToolTrainer()
    trainer.args.gradient_accumulation_steps = 1
    store_step(trl, trainer, tmp_path / "kept")
    return tmp_path / "kept"


def test_a_step_is_kept_with_its_tools_their_calls_and_the_messages_that_they_returned(step_folder: Path) -> None:
    result = json.loads((step_folder / "step_000001/rollout-0.json").read_bytes())
    assert result["tools"] == {"names": ["add"], "calls": 4, "failures": 1}
    assert [row["completion"] for row in result["rows"]] == [MESSAGES] * 4
    assert [row["env_mask"] for row in result["rows"]] == [[1, 1, 0, 1], [1, 0, 1], [1, 1, 0, 1], [1, 0, 1]]


@pytest.mark.parametrize("wrapped", [False, True], ids=["", "with a wrapped loop"])
def test_a_replay_uses_the_stored_tool_results_and_the_next_step_calls_the_tools_again(
    trl: SimpleNamespace, step_folder: Path, wrapped: bool
) -> None:
    trainer = ToolTrainer(rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch), tool_result="other")
    if wrapped:
        vars(trainer)["_tool_call_loop"] = trainer._tool_call_loop
    trainer.step(at=0)
    assert (trainer.generated, trainer.tool_loops, trainer.scored) == (0, 0, [MESSAGES] * 4)
    assert trainer.batch["completion_ids"] == [[*ids, 3, 9] for ids in IDS]
    assert "env_mask" not in trainer.batch  # TRL would hand it to the reward functions
    assert {name: values[0] for name, values in trainer._metrics["train"].items()} == {
        "tools/call_frequency": 1.0, "tools/failure_frequency": 0.25,
    }  # fmt: skip
    trainer.step(at=1)
    assert (trainer.generated, trainer.tool_loops) == (1, 1)
    assert [item[1]["content"] for item in trainer.scored] == ["other"] * 4


def test_the_calls_of_a_step_are_counted_by_the_first_of_several_processes(
    trl: SimpleNamespace, step_folder: Path, second_process: SimpleNamespace
) -> None:
    path = step_folder / "step_000001/rollout-0.json"
    result = json.loads(path.read_bytes())
    path.write_text(json.dumps({**result, "rows": result["rows"] * 2}))
    second_process.first, second_process.objections = {"step_000001"}, [None]
    for rank, calls in ((0, 4), (1, 0)):
        trainer = ToolTrainer(rank, 2, rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch))
        trainer.step(at=0)
        assert (trainer.generated, trainer.tool_loops) == (0, 0)
        assert trainer._metrics["train"]["tools/call_frequency"] == [calls / 4]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"tools": [len]}, "tools: add pinned, len requested"),
        ({"tools": [add, len]}, "tools: add pinned, add, len requested"),
        (
            {"environment_factories": {None: dict}},
            "the trainer has environments, whose state a replay does not restore",
        ),
        ({"_tool_call_loop": None}, "this trainer has no _tool_call_loop, and would call its tools again"),
    ],
)
def test_other_tools_and_environments_are_refused_with_the_reason(
    trl: SimpleNamespace, step_folder: Path, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], reason: str
) -> None:
    trainer = ToolTrainer(rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch), **arguments)
    assert trainer.rollout_func(["1+1?", "1+1?", "2+2?", "2+2?"], trainer)["completion_ids"] == IDS
    assert trainer.generated == 1 and f"Step 1 is not replayed: {reason}" in caplog.text


def test_a_step_with_tools_is_generated_by_a_trl_whose_loop_returns_other_values(
    trl: SimpleNamespace, step_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.0.0")
    trainer = ToolTrainer(rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch))
    trainer.step(at=0)
    assert (trainer.generated, trainer.tool_loops) == (1, 1)
    assert "Step 1 is not replayed: a step with tools needs TRL 1.1 or newer" in caplog.text


def test_a_step_with_tools_is_refused_by_a_trainer_without_and_the_other_way_round(
    trl: SimpleNamespace, step_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = Trainer(rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch))
    trainer.step(at=0)
    assert trainer.generated == 1 and "tools: add pinned, none requested" in caplog.text
    path = store_step(trl, Trainer(), tmp_path / "plain")
    trainer = ToolTrainer(rollout_func=trl.replaying(folder=path.parents[1], otherwise=generate_batch))
    trainer.step(at=0)
    assert (trainer.generated, trainer.tool_loops) == (1, 1) and "tools: none pinned, add requested" in caplog.text


@pytest.mark.parametrize("rows", [[{"completion": "text"}], [{"env_mask": None}], [{"completion": ["text"]}]])
def test_a_file_without_tool_results_is_refused(
    trl: SimpleNamespace, step_folder: Path, caplog: pytest.LogCaptureFixture, rows: list[dict[str, Any]]
) -> None:
    path = step_folder / "step_000001/rollout-0.json"
    result = json.loads(path.read_bytes())
    path.write_text(json.dumps({**result, "rows": [{**result["rows"][0], **rows[0]}, *result["rows"][1:]]}))
    trainer = ToolTrainer(rollout_func=trl.replaying(folder=step_folder, otherwise=generate_batch))
    trainer.step(at=0)
    assert trainer.generated == 1 and "its rows have no results of tools" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"tool_result": {3}}, "a tool's call or result is not plain JSON"),
        ({"tool_result": [{"type": "image", "image": "a.png"}]}, "or is an image"),
        ({"environment_factories": {None: dict}}, "the trainer's environments have a state"),
        ({"environment_factories": {None: dict}, "tools": []}, "the trainer's environments have a state"),
    ],
)
def test_a_step_whose_tool_results_cannot_be_replayed_is_counted_and_not_kept(
    trl: SimpleNamespace,
    connected_receiver: Receiver,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    arguments: Any,
    reason: str,
) -> None:
    trainer = ToolTrainer()
    vars(trainer).update(arguments)
    assert not store_step(trl, trainer, tmp_path / "kept").exists()
    assert "steps that could be pinned: " in caplog.text and reason in caplog.text
    assert connected_receiver.dumps  # its rows are recorded anyway
