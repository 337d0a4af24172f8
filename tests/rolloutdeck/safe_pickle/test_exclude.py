"""Groups with a flagged row are left out of a batch; all other rows are unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolloutdeck.safe_pickle.batches.batch import RolloutBatch, open_batch
from rolloutdeck.safe_pickle.batches.layouts import BatchContents
from rolloutdeck.safe_pickle.batches.torch_dict import open_torch_dict
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import placeholders
from rolloutdeck.safe_pickle.load.placeholders import Array, ByteSpan, Dtype, Name, Piece, Proto
from rolloutdeck.safe_pickle.rewrite import archive_writer as packing
from rolloutdeck.safe_pickle.rewrite.exclude import ExclusionResult, exclude_prompts, resolve_selected_rows
from rolloutdeck.safe_pickle.rewrite.pickle_writer import write_pickle
from rolloutdeck.safe_pickle.rewrite.row_selection import ByteRange, JoinedBytes, SelectedJaggedTensor, SelectedTensor
from rolloutdeck.safe_pickle.safety_report import check_file_safety
from rolloutdeck.safe_pickle.stream.source import ByteSource
from rolloutdeck.safe_pickle.stream.torch_archive import TorchArchive
from tests.rolloutdeck.safe_pickle.dumps import ASYNC, MAIN, NUMPY, QUEUE, V2, WITHOUT_SCORES, Size, write_data_proto
from tests.rolloutdeck.safe_pickle.test_repair import object_array

__all__ = ["write_data_proto"]


def read_rows(batch: RolloutBatch, rows: Sequence[int]) -> dict[str, Any]:
    """The values of some rows of a batch."""
    return {
        "tensors": {
            name: [[str(item.dtype), item.shape, item.tobytes()] for item in (batch.tensor(name, row) for row in rows)]
            for name in batch.fields
        },
        "columns": {name: repr([batch.column(name)[row] for row in rows]) for name in batch.columns},
        "keys": [batch.keys[row] for row in rows] if batch.keys else [],
        "tags": repr([batch.tags[row] for row in rows]) if batch.keys else "",
        "meta": repr(batch.meta),
    }


DUMPS = [MAIN, NUMPY, QUEUE, V2]


@pytest.mark.parametrize("path", DUMPS, ids=["torch", "raw arrays", "queue", "verl 0.8"])
def test_groups_with_a_flagged_row_are_removed_and_the_other_rows_are_unchanged(path: Path, tmp_path: Path) -> None:
    target = tmp_path / path.name
    assert exclude_prompts(path, target, [5, 6, 9], answers=4) == ExclusionResult(
        rows=8, prompts=2, rows_left=24, prompts_left=6
    )
    with open_batch(path) as full, open_batch(target) as remaining:
        requests = [full.tensor("prompts", row).tobytes() for row in range(full.rows)]
        assert len(set(requests)) == 8
        keep = [row for row, prompt in enumerate(requests) if prompt not in (requests[5], requests[9])]
        assert read_rows(remaining, range(remaining.rows)) == read_rows(full, keep)
        assert remaining.serialisation == full.serialisation
    assert (check_file_safety(target).loadable, check_file_safety(target).format) == (
        True,
        check_file_safety(path).format,
    )
    assert list(tmp_path.iterdir()) == [target]


def test_the_groups_of_a_queue_come_from_its_keys(tmp_path: Path) -> None:
    with open_batch(QUEUE) as batch:
        prompt = batch.keys[31].split("_")[0]
    exclude_prompts(QUEUE, tmp_path / "out", [31])
    with open_batch(tmp_path / "out") as remaining:
        assert remaining.rows == 28 and not any(key.startswith(prompt) for key in remaining.keys)


def test_a_batch_with_uids_needs_no_number_of_answers(tmp_path: Path) -> None:
    assert exclude_prompts(WITHOUT_SCORES, tmp_path / "out", [2]) == ExclusionResult(2, 1, 2, 1)
    with open_batch(WITHOUT_SCORES) as full, open_batch(tmp_path / "out") as remaining:
        assert remaining.column("uid") == full.column("uid")[:2]


@pytest.mark.parametrize("answers", [0, 5, 8, 16], ids=["unknown", "not a part", "too many", "half"])
def test_a_batch_whose_groups_are_unknown_is_not_written(answers: int, tmp_path: Path) -> None:
    with pytest.raises(SafePickleError, match="which of its rows answer one prompt"):
        exclude_prompts(MAIN, tmp_path / "out", [0], answers)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_if_all_prompts_are_flagged(tmp_path: Path) -> None:
    with pytest.raises(SafePickleError, match="all its prompts are selected"):
        exclude_prompts(ASYNC, tmp_path / "out", [1], answers=4)
    assert not list(tmp_path.iterdir())


def test_a_row_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SafePickleError, match="row 32 is selected and the batch has 32"):
        exclude_prompts(MAIN, tmp_path / "out", [32], answers=4)


def test_padding_rows_are_not_counted_whether_key_or_tag_marks_them() -> None:
    keys, tags = ["pad0_0_0", "a_0_0", "b_0_0", "c_0_0"], [{}, {"is_padding": True}, {}, {}]
    assert resolve_selected_rows(RolloutBatch(BatchContents("tq_batch", 4, {}, {}, {}, keys, tags)), [0, 1]) == [2, 3]


def test_the_bytes_are_the_same_in_every_process(tmp_path: Path) -> None:
    code = (
        "import sys; from rolloutdeck.safe_pickle.rewrite.exclude import exclude_prompts; "
        "exclude_prompts(sys.argv[1], sys.argv[2], [1])"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(QUEUE), str(tmp_path / seed)]
        subprocess.run(command, check=True, timeout=600, env={**os.environ, "PYTHONHASHSEED": seed})
    exclude_prompts(QUEUE, tmp_path / "3", [1])
    assert len({(tmp_path / name).read_bytes() for name in "123"}) == 1


def test_a_batch_with_an_unreadable_value_is_not_written_and_the_older_file_stays(
    write_data_proto: Any, tmp_path: Path
) -> None:
    prompts = ("int64", Size((4, 1)), np.zeros(32, "u1"))
    source = write_data_proto(((4,), None, {"prompts": prompts}), {"why": object_array(1, 2, 3, Decimal(1))})
    target = tmp_path / "into" / "gen_batch.dp"
    target.parent.mkdir()
    target.write_bytes(b"older")
    with pytest.raises(SafePickleError, match=r"decimal\.Decimal"):
        exclude_prompts(source, target, [0], answers=2)
    assert (target.read_bytes(), len(list(target.parent.iterdir()))) == (b"older", 1)
    # The unreadable value was in the removed group.
    assert exclude_prompts(source, target, [3], answers=2).rows_left == 2


@pytest.mark.parametrize("column", [np.arange(3), np.zeros((1, 4))], ids=["fewer rows", "one row of four"])
def test_a_column_with_other_rows_than_its_batch_is_refused(column: Any, write_data_proto: Any, tmp_path: Path) -> None:
    source = write_data_proto(((4,), None, {"prompts": ("int64", Size((4, 1)), np.zeros(32, "u1"))}), {"n": column})
    with pytest.raises(SafePickleError, match="without a value per row"):
        exclude_prompts(source, tmp_path / "out", [0], answers=2)


def test_columns_of_several_dimensions_lose_whole_rows(write_data_proto: Any, tmp_path: Path) -> None:
    prompts = ("int64", Size((4, 1)), np.zeros(32, "u1"))
    grid = np.array([[[1], "b"], [2, "c"], [3, "d"], [4, "e"]], dtype=object)
    columns = {"n": np.arange(8, dtype="i2").reshape(4, 2), "grid": grid, "text": np.array(["", "中", "x", "y"])}
    source = write_data_proto(((4,), None, {"prompts": prompts}), columns, {"b": {1, 2}})
    exclude_prompts(source, tmp_path / "out", [1], answers=2)
    with open_batch(tmp_path / "out") as remaining:
        assert remaining.column("n") == [[4, 5], [6, 7]]
        assert remaining.column("grid") == [[3, "d"], [4, "e"]]
        assert remaining.column("text") == ["x", "y"]


def test_a_large_batch_is_copied_without_being_loaded(tmp_path: Path) -> None:
    size, width = 64 << 20, 1 << 20
    raw, source, target = tmp_path / "raw", tmp_path / "gen_batch.dp", tmp_path / "out"
    with raw.open("wb") as file:
        file.truncate(size)
    core = Name("numpy._core.multiarray", "_reconstruct")
    with ByteSource.open(raw) as opened, source.open("wb") as file:
        flags = ("|", None, None, None, -1, -1)
        text, bytes_ = Dtype("O8", (3, *flags, 63)), Dtype("u1", (3, *flags, 0))
        flat = Array(core, bytes_, (size,), Piece(opened, ByteSpan(0, size)))
        rows = size // width
        tensors = ((rows,), None, {"prompts": ("uint8", placeholders.Size((rows, width)), flat)})
        uids = Array(core, text, (rows,), [str(row // 2) for row in range(rows)])
        write_pickle(Proto(Name("verl.protocol", "DataProto"), (tensors, {"uid": uids}, {})), file)
    tracemalloc.start()
    assert exclude_prompts(source, target, [0, 9]).rows_left == rows - 4
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert target.stat().st_size > size - 4 * width and peak < 8 << 20


def test_tensors_are_written_contiguously_each_with_its_own_storage(tmp_path: Path) -> None:
    data = bytes(range(96))
    tensors = {
        "a": SelectedTensor("int64", (2, 3, 2), JoinedBytes([ByteRange(data, 0, 96)])),
        "b": SelectedTensor("uint8", (2,), JoinedBytes([ByteRange(data, 7, 2)])),
    }
    with (tmp_path / "made").open("wb") as file:
        packing.write_torch_batch(tensors, file)
    with open_torch_dict(tmp_path / "made") as saved:
        assert [(item.shape, item.stride) for item in saved.values()] == [((2, 3, 2), (6, 2, 1)), ((2,), (1,))]
    with zipfile.ZipFile(tmp_path / "made") as created:
        names = [name.partition("/")[2] for name in created.namelist()]
        assert names == ["data.pkl", "byteorder", "data/0", "data/1", "version"]
        assert (created.read("archive/data/0"), created.read("archive/data/1")) == (data, b"\x07\x08")
        assert created.testzip() is None


def test_a_tensor_in_two_places_is_written_once_and_loaded_as_one_tensor(tmp_path: Path) -> None:
    offsets = SelectedTensor("int64", (2,), JoinedBytes([ByteRange(bytes(16), 0, 16)]))
    rows = SelectedJaggedTensor(SelectedTensor("uint8", (0,), JoinedBytes([])), offsets)
    with (tmp_path / "made").open("wb") as file:
        packing.write_torch_batch({"offsets": offsets, "rows": rows, "again": {"rows": rows}}, file)
    with zipfile.ZipFile(tmp_path / "made") as created:
        assert [name for name in created.namelist() if "/data/" in name] == ["archive/data/0", "archive/data/1"]
    assert check_file_safety(tmp_path / "made").loadable
    with open_torch_dict(tmp_path / "made") as saved:
        assert saved["rows"] is saved["again"]["rows"]


def test_an_archive_is_written_a_block_at_a_time(tmp_path: Path) -> None:
    block, size = bytes(1 << 20), 64 << 20
    zeros = [ByteRange(block, 0, len(block))] * (size >> 20)
    tracemalloc.start()
    with (tmp_path / "made").open("wb") as file:
        packing.write_torch_batch(SelectedTensor("uint8", (size,), JoinedBytes(zeros)), file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "made").stat().st_size > size and peak < 8 << 20


def test_an_archive_of_more_than_4_gib_has_its_sizes_where_torch_has_them(tmp_path: Path) -> None:
    """Sizes and positions do not fit into 32 bits. The zeros are a hole in the file, and are not read."""
    huge, path = (1 << 32) + 64, tmp_path / "huge"
    block = bytes(1 << 20)
    zeros = [ByteRange(block, 0, len(block))] * (huge >> 20) + [ByteRange(block, 0, huge % (1 << 20))]
    with path.open("wb") as file:
        packing.write_torch_batch(
            [
                SelectedTensor("uint8", (huge,), JoinedBytes(zeros)),
                SelectedTensor("uint8", (1,), JoinedBytes([ByteRange(b"x", 0, 1)])),
            ],
            SparseFile(file),
        )
    with ByteSource.open(path) as opened:
        archive = TorchArchive.open(opened)
        assert (archive.members["data/0"].length, archive.member("data/1").read(0, 1)) == (huge, b"x")
    assert check_file_safety(path).loadable
    with zipfile.ZipFile(path) as other:  # another reader of ZIPs than our own
        assert (other.getinfo("archive/data/0").file_size, other.read("archive/data/1")) == (huge, b"x")


class SparseFile:
    """A file in which zeros need no disk space."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: bytes) -> None:
        if data.count(0) == len(data) > 4096:
            self.file.seek(len(data), os.SEEK_CUR)
        else:
            self.file.write(data)
