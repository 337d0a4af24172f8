"""Rows of ROLL's batches are masked with zeros in the file; all else is unchanged."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path

import pytest

from rolloutdeck.safe_pickle import SafePickleError, check_file_safety
from rolloutdeck.safe_pickle.batches.batch import open_roll_batch
from rolloutdeck.safe_pickle.rewrite.zero import zero_rows
from tests.rolloutdeck.safe_pickle import assembler as asm

STEP = Path(__file__).parents[2] / "data/roll/mock/train/step_000001.pkl"
MASK = "response_mask"


def open_inner_archive(path: Path) -> zipfile.ZipFile:
    """Opens the archive of the tensors."""
    data = path.read_bytes()
    begin, end = data.index(b"PK\x03\x04"), data.rindex(b"PK\x05\x06") + 22
    return zipfile.ZipFile(io.BytesIO(data[begin:end]))


def test_the_given_rows_have_no_weight_and_nothing_else_changes(tmp_path: Path) -> None:
    zero_rows(STEP, tmp_path / "made.pkl", MASK, [5, 1] * 16)  # as many as the batch has rows
    assert check_file_safety(tmp_path / "made.pkl").loadable
    with open_roll_batch(STEP) as before, open_roll_batch(tmp_path / "made.pkl") as after:
        assert after.meta == before.meta
        assert dict(after.columns) == dict(before.columns)
        changed = {
            (name, row)
            for name in before.fields
            for row in range(before.rows)
            if before.numbers(name, row) != after.numbers(name, row)
        }
        assert changed == {(MASK, 1), (MASK, 5)}
        assert not any(after.numbers(MASK, 1) or [1])


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_only_the_mask_and_its_checksums_differ_and_the_checksums_are_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr("rolloutdeck.safe_pickle.rewrite.zero.COPY_BLOCK_BYTES", block)  # read at once
    zero_rows(STEP, tmp_path / "made.pkl", MASK, [1])
    before, after = STEP.read_bytes(), (tmp_path / "made.pkl").read_bytes()
    with open_roll_batch(STEP) as batch:
        weighed = sum(batch.numbers(MASK, 1) or [])
    assert len(before) == len(after)
    assert weighed < sum(left != right for left, right in zip(before, after, strict=True)) <= weighed + 8
    assert open_inner_archive(tmp_path / "made.pkl").testzip() is None


def build_consolidated_batch(rows: int) -> bytes:
    """A batch of ROLL with a consolidated tensordict; its batch size is 2."""
    shape = asm.tuple_(asm.text("torch.uint8"), asm.list_(asm.number(2), asm.number(rows)))
    positions = {"prompts": (0, 2 * rows), "mask": (2 * rows, 4 * rows)}
    leaves = {
        name: shape[:-1] + asm.number(start) + asm.number(end) + asm.number(0) + b"t"
        for name, (start, end) in positions.items()
    }
    held = asm.consolidated_tensordict(asm.tensor(asm.storage(4 * rows), 4 * rows), **leaves)
    return asm.roll_batch(asm.buffer(asm.bytes_(asm.torch_file(held, b"x" * (4 * rows)))))


def test_a_consolidated_tensordict_is_masked_too(tmp_path: Path) -> None:
    (tmp_path / "step.pkl").write_bytes(build_consolidated_batch(50_000))
    zero_rows(tmp_path / "step.pkl", tmp_path / "made.pkl", "mask", [1])
    assert open_inner_archive(tmp_path / "made.pkl").testzip() is None
    with open_roll_batch(tmp_path / "made.pkl") as after:
        assert after.numbers("mask", 1) == [0] * 50_000
        for name, row in (("mask", 0), ("prompts", 0), ("prompts", 1)):
            assert after.numbers(name, row) == [ord("x")] * 50_000


def test_a_batch_that_is_too_short_to_be_masked_in_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step.pkl").write_bytes(build_consolidated_batch(8))
    with pytest.raises(SafePickleError, match="so short"):
        zero_rows(tmp_path / "step.pkl", tmp_path / "made.pkl", "prompts", [1])


@pytest.mark.parametrize(
    ("name", "rows", "reason"),
    [
        (MASK, [32], "row 32 is selected and the batch has 32"),
        (MASK, [-1], "row -1 is selected and the batch has 32"),
        (MASK, range(32), "all its rows are selected"),
        ("scores", [1], "shares its bytes with another tensor"),
        ("loss_mask", [1], "its loss_mask is not a plain tensor"),
    ],
)
def test_rows_that_cannot_be_masked_are_refused_and_nothing_is_written(
    tmp_path: Path, name: str, rows: list[int], reason: str
) -> None:
    with pytest.raises(SafePickleError, match=reason):
        zero_rows(STEP, tmp_path / "made.pkl", name, rows)
    assert not list(tmp_path.iterdir())


def test_a_mask_is_refused_if_an_unreadable_tensor_may_share_its_bytes(tmp_path: Path) -> None:
    held = asm.storage(8000)
    content = asm.tensordict(mask=asm.tensor(held, 2), other=asm.expanded_tensor(held, 2, 8000))
    (tmp_path / "step.pkl").write_bytes(asm.roll_batch(asm.buffer(asm.bytes_(asm.torch_file(content, b"x" * 8000)))))
    with pytest.raises(SafePickleError, match="can't be read"):
        zero_rows(tmp_path / "step.pkl", tmp_path / "made.pkl", "mask", [1])


def test_a_batch_that_could_not_be_written_to_its_end_does_not_replace_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_with_full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("rolloutdeck.safe_pickle.rewrite.zero.write_checksums", fail_with_full_disk)
    (tmp_path / "made.pkl").write_bytes(b"the one before")
    with pytest.raises(OSError, match="No space left"):
        zero_rows(STEP, tmp_path / "made.pkl", MASK, [1])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the one before"]
