"""A V0 batch without streamed rewards is written again without the columns that would stop a run that replays it."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections import OrderedDict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolloutdeck.safe_pickle.batches.batch import open_batch
from rolloutdeck.safe_pickle.batches.layouts import load_data_proto
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import placeholders
from rolloutdeck.safe_pickle.load.placeholders import Array, ByteSpan, Dtype, Name, Piece, Proto
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.rewrite.repair import (
    ALWAYS_DROPPED_COLUMNS,
    MOVED_DROPPED_COLUMNS,
    RepairResult,
    columns_to_drop,
    drop_columns,
)
from rolloutdeck.safe_pickle.safety_report import check_file_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from tests.rolloutdeck.safe_pickle import assembler as asm
from tests.rolloutdeck.safe_pickle.dumps import MAIN, NUMPY, QUEUE, V2_NEW, WITHOUT_SCORES, Size, write_data_proto
from tests.rolloutdeck.safe_pickle.summary import summarize_dump

__all__ = ["write_data_proto"]
BOTH = (*ALWAYS_DROPPED_COLUMNS, *MOVED_DROPPED_COLUMNS)


def object_array(*values: Any) -> np.ndarray:
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result


@pytest.mark.parametrize("drop", [ALWAYS_DROPPED_COLUMNS, BOTH], ids=["at its own step", "moved"])
def test_only_the_given_columns_are_dropped_and_the_rest_is_unchanged(drop: tuple[str, ...], tmp_path: Path) -> None:
    target = tmp_path / "gen_batch.dp"
    assert drop_columns(WITHOUT_SCORES, target, drop) == RepairResult(drop, 4)
    before, after = summarize_dump(WITHOUT_SCORES), summarize_dump(target)
    assert set(before["columns"]) - set(after["columns"]) == set(drop)
    before["columns"] = {name: text for name, text in before["columns"].items() if name not in drop}
    assert after == before
    assert (check_file_safety(target).loadable, list(tmp_path.iterdir())) == (True, [target])


def test_the_columns_to_drop_depend_on_the_scores_and_on_whether_the_step_moves() -> None:
    with open_batch(WITHOUT_SCORES) as batch:
        assert (columns_to_drop(batch, moved=False), columns_to_drop(batch, moved=True)) == (
            ALWAYS_DROPPED_COLUMNS,
            BOTH,
        )
    for path in (MAIN, NUMPY, QUEUE, V2_NEW):
        with open_batch(path) as batch:
            assert columns_to_drop(batch, moved=True) == ()


@pytest.mark.parametrize("path", [MAIN, NUMPY, QUEUE], ids=["with scores", "raw arrays with scores", "queue"])
def test_a_batch_that_needs_no_repair_is_not_written(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SafePickleError):
        drop_columns(path, tmp_path / "out", BOTH)
    assert not list(tmp_path.iterdir())


def test_uid_is_not_dropped_if_the_batch_has_scores(write_data_proto: Any, tmp_path: Path) -> None:
    scores = ("float32", Size((2, 1)), np.zeros(8, "u1"))
    source = write_data_proto(((2,), None, {"rm_scores": scores}), {"uid": object_array("a", "b")})
    with pytest.raises(SafePickleError, match="nothing to repair"):
        drop_columns(source, tmp_path / "out", ["uid"])
    with open_batch(source) as batch:
        assert columns_to_drop(batch, moved=True) == ()


def test_no_other_column_can_be_dropped(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="raw_prompt"):
        drop_columns(WITHOUT_SCORES, tmp_path / "out", ("uid", "raw_prompt"))
    assert not list(tmp_path.iterdir())


def test_the_bytes_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; from rolloutdeck.safe_pickle.rewrite.repair import drop_columns; "
        "drop_columns(sys.argv[1], sys.argv[2], ['uid'])"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(WITHOUT_SCORES), str(tmp_path / seed)]
        subprocess.run(command, check=True, timeout=600, env={**os.environ, "PYTHONHASHSEED": seed})
    drop_columns(WITHOUT_SCORES, tmp_path / "3", ["uid"])
    assert len({(tmp_path / name).read_bytes() for name in "123"}) == 1


def test_every_type_of_value_is_written_unchanged(write_data_proto: Any, tmp_path: Path) -> None:
    shared = {"deep": (1, (2.5, None), b"x", "x" * 300, -(1 << 70), [True, 70_000, -5])}
    rows = object_array(shared, shared, {})
    columns = {
        "uid": object_array("a", "b", "c"),
        "extras": rows,
        "pred": np.array(["", "中", "three"]),
        "n": np.arange(3),
    }
    source = write_data_proto(None, columns, {"m": np.float64(0.5), "b": np.bool_(True)})
    drop_columns(source, tmp_path / "out", ["uid"])
    with open_batch(source) as left, open_batch(tmp_path / "out") as right:
        assert [right.column(name) for name in right.columns] == [
            left.column(name) for name in left.columns if name != "uid"
        ]
        assert right.meta == left.meta == {"m": 0.5, "b": True}


def test_an_ordered_dict_is_written_as_one(write_data_proto: Any, tmp_path: Path) -> None:
    drop_columns(
        write_data_proto(None, {"uid": object_array("a")}, {"o": OrderedDict(b=1, a=2)}), tmp_path / "out", ["uid"]
    )
    with ByteSource.open(tmp_path / "out") as source:
        state = load_data_proto(source).state
    assert state is not None and state[2]["o"] == OrderedDict(b=1, a=2)
    assert type(state[2]["o"]) is OrderedDict


def test_a_shared_value_is_written_once(write_data_proto: Any, tmp_path: Path) -> None:
    long = ["x" * 100_000]
    source = write_data_proto(None, {"uid": object_array(*"ab"), "raw_prompt": object_array(*[long] * 2)})
    drop_columns(source, tmp_path / "out", ["uid"])
    assert (tmp_path / "out").stat().st_size < 101_000


def test_a_batch_that_cannot_be_read_completely_is_not_written_again(write_data_proto: Any, tmp_path: Path) -> None:
    source = write_data_proto(None, {"uid": object_array("a"), "extras": object_array(Decimal(1))})
    target = tmp_path / "into" / "gen_batch.dp"
    target.parent.mkdir()
    target.write_bytes(b"older")
    with pytest.raises(SafePickleError, match=r"decimal\.Decimal"):
        drop_columns(source, target, ["uid"])
    assert (target.read_bytes(), len(list(target.parent.iterdir()))) == (b"older", 1)


def test_a_large_batch_is_copied_without_being_loaded(tmp_path: Path) -> None:
    size = 64 << 20
    raw, source, target = tmp_path / "raw", tmp_path / "gen_batch.dp", tmp_path / "out"
    with raw.open("wb") as file:
        file.truncate(size)
    core = Name("numpy._core.multiarray", "_reconstruct")
    with ByteSource.open(raw) as opened, source.open("wb") as file:
        text, bytes_ = (
            Dtype("O8", (3, "|", None, None, None, -1, -1, 63)),
            Dtype("u1", (3, "|", None, None, None, -1, -1, 0)),
        )
        flat = Array(core, bytes_, (size,), Piece(opened, ByteSpan(0, size)))
        tensors = ((2,), None, {"prompts": ("int64", placeholders.Size((2, size // 16)), flat)})
        write_pickle(
            Proto(Name("verl.protocol", "DataProto"), (tensors, {"uid": Array(core, text, (2,), ["a", "b"])}, {})), file
        )
    tracemalloc.start()
    assert drop_columns(source, target, ["uid"]).dropped == ("uid",)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert target.stat().st_size > size and peak < 8 << 20


def test_a_batch_whose_scores_are_not_contiguous_has_scores(tmp_path: Path) -> None:
    content = asm.tensordict(rm_scores=asm.expanded_tensor(asm.storage(2, kind="Float"), 2, 2))
    uid = asm.dict_(uid=asm.object_array(asm.text("a"), asm.text("b")))
    path = tmp_path / "gen_batch.dp"
    path.write_bytes(asm.proto(asm.bytes_(asm.torch_file(content, bytes(8))), uid))
    with open_batch(path) as batch:
        assert columns_to_drop(batch, moved=False) == ()
    with pytest.raises(SafePickleError, match="nothing to repair"):
        drop_columns(path, tmp_path / "made.dp", ["uid"])
