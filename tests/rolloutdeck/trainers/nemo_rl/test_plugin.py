"""The backend that `record` adds to NeMo-RL's logger, with the columns of NeMo-RL's own dumps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.trainers import nemo_rl
from rolloutdeck.trainers.nemo_rl import plugin
from rollouts.formats import nemo_rl as nemo_format
from rollouts.formats.base import DumpContext
from rollouts.formats.native import build_native_record
from rollouts.samples import Record
from tests.rolloutdeck.trainers.conftest import Recorder

DATA = sorted((Path(__file__).parents[3] / "data/nemo_rl").rglob("*.jsonl"))
CONFIG = {
    "logger": {"wandb": {"project": "math", "name": "grpo"}},
    "checkpointing": {"enabled": False},
    "grpo": {"num_generations_per_prompt": 4},
}


class Logger:
    """The parts of NeMo-RL's logger that `record` uses."""

    def __init__(self) -> None:
        self.loggers: list[Any] = []
        self.files: list[str] = []

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        for backend in self.loggers:
            backend.log_metrics(*args, **kwargs)

    def log_batched_dict_as_jsonl(self, to_log: Any, filename: str) -> None:
        self.files.append(filename)


def read_columns(path: Path) -> dict[str, list[Any]]:
    """Reads the columns that NeMo-RL wrote to this file."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    return {name: [row[name][0] for row in rows] for name in rows[0] if name != "idx"}


@pytest.mark.parametrize("path", DATA, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_recorded_rows_are_those_that_the_server_reads_from_the_file(path: Path, recorder: Recorder) -> None:
    logger = nemo_rl.record(Logger(), CONFIG)
    logger.log_batched_dict_as_jsonl(read_columns(path), path.name)
    recorder.finish()
    split, step = ("eval" if path.name.startswith("val") else "train"), int(path.stem.partition("step")[2])
    with path.open("rb") as file:
        items = list(nemo_format.read(file, DumpContext(filename=path.name)))
    expected = [item for item in items if isinstance(item, Record)]
    records = [build_native_record(row) for row in recorder.rows(split)[step]]
    for record in (*records, *expected):
        record.messages = record.messages and record.messages[:1]  # the file repeats the answer among them
    assert records == expected
    assert logger.files == [path.name] and len(expected) > 1


def test_with_dynamic_sampling_each_row_has_its_own_reward(recorder: Recorder) -> None:
    """Then `rewards` are those of the first generated samples, of which NeMo-RL dropped some."""
    batch = {"content": [["a", "b"], ["c", "d"]], "rewards": [1.0, 1.0], "filtered_rewards": [0.0, 1.0]}
    nemo_rl.record(Logger(), CONFIG).log_batched_dict_as_jsonl(batch, "train_data_step1.jsonl")
    recorder.finish()
    rows = recorder.rows()[1]
    assert rows == [
        {"prompt": "a", "response": "b", "score": 0.0}, {"prompt": "c", "response": "d", "score": 1.0},
    ]  # fmt: skip
    lines = [{name: [values[index]] for name, values in batch.items()} | {"idx": index} for index in (0, 1)]
    records = [nemo_format.convert_row(line) for line in lines]
    assert [(record.score, record.extras) for record in records] == [(0.0, {}), (1.0, {})]


def test_metrics_have_nemos_names_and_those_of_a_monitor_are_skipped(recorder: Recorder) -> None:
    logger = nemo_rl.record(Logger(), CONFIG)
    logger.log_metrics({"loss": 0.5, "histogram/gen": [1, 2]}, 3, prefix="train")
    logger.log_metrics({"accuracy": 0.25}, 3, "validation", None, True)
    logger.log_metrics({"gpu.0.memory": 9.0, "ray/ray_step": 700}, 700, prefix="ray", step_metric="ray/ray_step")
    recorder.finish()
    assert recorder.metrics(3) == {"train/loss": 0.5, "validation/accuracy": 0.25}
    assert recorder.metrics(700) == {}
    run = recorder.run()
    assert (run["project"], run["name"], run["framework"]) == ("math", "grpo", "nemo-rl")
    assert run["config"]["grpo"] == {"num_generations_per_prompt": 4}


def test_a_second_call_records_nothing_twice(recorder: Recorder) -> None:
    logger = nemo_rl.record(nemo_rl.record(Logger(), CONFIG), CONFIG)
    logger.log_batched_dict_as_jsonl({"content": [["a", "b"]], "rewards": [1.0]}, "train_data_step1.jsonl")
    recorder.finish()
    assert recorder.rows() == {1: [{"prompt": "a", "response": "b", "score": 1.0}]}


@pytest.mark.parametrize("config", [None, {}, 5, {"logger": 1}, {"checkpointing": {"enabled": True}}])
def test_an_invalid_config_does_not_stop_the_training(config: Any, recorder: Recorder) -> None:
    logger = nemo_rl.record(Logger(), config)
    logger.log_batched_dict_as_jsonl({"content": [["a", "b"]]}, "train_data_step1.jsonl")
    assert logger.files == ["train_data_step1.jsonl"]


@pytest.mark.parametrize(
    "batch", [{"content": None}, {"content": [["a", "b"]], "rewards": [object()]}, {"content": [5]}]
)
def test_a_batch_that_can_not_be_read_is_reported_once(
    batch: Any, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    logger = nemo_rl.record(Logger(), CONFIG)
    for step in (1, 2):
        logger.log_batched_dict_as_jsonl(batch, f"train_data_step{step}.jsonl")
    logger.log_batched_dict_as_jsonl({"content": [["a", "b"]]}, "train_data_step3.jsonl")
    recorder.finish()
    assert recorder.rows()[3] == [{"prompt": "a", "response": "b"}]
    assert len(logger.files) == 3 and len([text for text in caplog.messages if "lost something" in text]) <= 1


def test_an_error_of_nemos_own_writer_reaches_the_training(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = Logger()
    monkeypatch.setattr(logger, "files", None)
    with pytest.raises(AttributeError):
        nemo_rl.record(logger, CONFIG).log_batched_dict_as_jsonl({"content": []}, "train_data_step1.jsonl")


def test_only_selected_groups_have_tokens(recorder: Recorder) -> None:
    batch = {"content": [["a", "b"], ["c", "d"]], "token_ids": [[1, 2, 0], [3, 4, 5]], "input_lengths": [2, 3]}
    batch |= {"token_loss_mask": [[0, 1, 0], [0, 1, 1]]}
    selection = plugin.TokenSelection(0)
    assert all("response_ids" not in row for row in plugin.build_nemo_rows(batch, selection, "train", 1))
    rows = plugin.build_nemo_rows(batch, plugin.TokenSelection(None), "train", 1)
    assert [(row["prompt_ids"], row["response_ids"]) for row in rows] == [([1], [2]), ([3], [4, 5])]
