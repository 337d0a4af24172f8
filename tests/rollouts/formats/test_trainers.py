"""Dumps of TRL, slime and ROLL are recognised, and damaged or hostile ones do no harm."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import HEAD_BYTES, Format, select_format, trl_completions
from rollouts.formats.roll import jsonl as roll_jsonl
from rollouts.formats.roll import mock as roll_mock
from rollouts.formats.slime import rollout as slime_rollout
from rollouts.formats.slime import train as slime_train
from rollouts.samples.record import LineProblem, Record
from rollouts.storage import files
from tests.rollouts.support.trainer_dumps import ROLL, SLIME, TRL, encode_rollout, read_items, read_records, sample

REAL: dict[Path, Format] = {
    TRL / "plain/completions/completions_00004.parquet": trl_completions,
    TRL / "trl_1.9.2/completions/completions_00004.parquet": trl_completions,
    SLIME / "rollout_data/0.pt": slime_rollout,
    SLIME / "rollout_data/eval_0.pt": slime_rollout,
    SLIME / "train_data/0_0.pt": slime_train,
    ROLL / "rlvr_jsonl/rollout_dump_data.step_1.jsonl": roll_jsonl,
    ROLL / "agentic_jsonl/rollout_dump_data.step_1.jsonl": roll_jsonl,
    ROLL / "mock/train/step_000001.pkl": roll_mock,
}
BINARY = {path: form for path, form in REAL.items() if form is not roll_jsonl}


@pytest.mark.parametrize("path", REAL, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_real_dump_is_recognised_by_its_beginning(path: Path) -> None:
    assert select_format(path.name, path.read_bytes()[:HEAD_BYTES]) is REAL[path]


@pytest.mark.parametrize("path", BINARY, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_stream_gives_what_the_file_gives_and_leaves_no_copy_behind(path: Path) -> None:
    form, name = BINARY[path], path.name
    assert read_items(form, path.read_bytes(), filename=name) == read_items(form, b"", filename=name, path=path) != []
    assert [item for item in files.create_incoming_path().parent.iterdir() if item.is_file()] == []


@pytest.mark.parametrize("path", BINARY, ids=lambda path: "/".join(path.parts[-3:]))
def test_a_damaged_file_gives_records_or_one_sentence_and_nothing_else(path: Path) -> None:
    body, chance = path.read_bytes(), random.Random(7)
    for _ in range(25):
        broken = bytearray(body)
        for _ in range(chance.randint(1, 8)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        cut = bytes(broken[: chance.choice([len(broken), chance.randrange(len(broken))])])
        try:
            assert all(
                isinstance(item, (Record, LineProblem)) for item in read_items(BINARY[path], cut, filename=path.name)
            )
        except UnreadableDumpError as error:
            assert "\n" not in str(error) and str(error).endswith(".")


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_code_in_a_rollout_is_not_run_and_the_other_values_are_read(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (record,) = read_records(
        slime_rollout, encode_rollout(sample(metadata={"image": Hostile(mark), "source_name": "gsm8k"}))
    )
    assert not mark.exists()
    assert (record.response, record.data_source) == ("4", "gsm8k")
    assert record.extras["metadata"]["image"] == "<unreadable: posix.mkdir>"


def test_code_in_place_of_a_batch_is_not_run_and_refused(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = pickle.dumps(Hostile(mark)) + b"roll.distributed.scheduler.protocol"
    with pytest.raises(UnreadableDumpError, match=r"posix\.mkdir"):
        read_items(roll_mock, body)
    assert not mark.exists()
