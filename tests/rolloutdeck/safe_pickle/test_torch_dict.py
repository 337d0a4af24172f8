"""Flat tensors in the rows of a dict that `torch.save` wrote become lists."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import RowConverter, open_torch_dict
from rolloutdeck.safe_pickle.load import Unreadable
from tests.rolloutdeck.safe_pickle import assembler as asm

NUMBERS = struct.pack("<12f", *range(12))


@contextmanager
def open_row(folder: Path, *storages: bytes, **values: bytes) -> Iterator[Any]:
    """Opens the row of a torch file, as the interpreter built it."""
    path = folder / "0.pt"
    path.write_bytes(asm.torch_file(asm.dict_(row=asm.dict_(**values)), *(storages or (NUMBERS,))))
    with open_torch_dict(path) as saved:
        yield saved["row"]


def build_tensor(size: int, stride: int, offset: int = 0, elements: int = 12) -> bytes:
    return asm.tensor(asm.storage(elements, kind="Float"), size, stride, offset=offset)


@pytest.mark.parametrize(
    ("size", "stride", "offset", "numbers"),
    [
        (3, 1, 2, [2, 3, 4]),
        (3, 4, 1, [1, 5, 9]),
        (3, 0, 7, [7, 7, 7]),
        (1, 99, 3, [3]),
        (0, 99, 3, []),
    ],
    ids=["a list", "a column", "one number, expanded", "one number", "nothing"],
)
def test_a_flat_tensor_becomes_a_list_whatever_its_stride(
    tmp_path: Path, size: int, stride: int, offset: int, numbers: list[float]
) -> None:
    with open_row(tmp_path, x=build_tensor(size, stride, offset), y=asm.number(1)) as row:
        assert RowConverter().plain(row) == {"x": numbers, "y": 1}


@pytest.mark.parametrize(("size", "stride"), [(4, 4), (2, 1 << 30), (2, -1)])
def test_a_flat_tensor_that_cannot_be_read_is_inert_and_the_rest_of_the_row_is_read(
    tmp_path: Path, size: int, stride: int
) -> None:
    with open_row(tmp_path, x=build_tensor(size, stride, 1), y=asm.number(1)) as row:
        result = RowConverter().plain(row)
    assert isinstance(result["x"], Unreadable) and result["y"] == 1


@pytest.mark.timeout(60)
def test_two_numbers_that_are_far_from_each_other_are_not_read_again_and_again(tmp_path: Path) -> None:
    elements = 4 << 20
    tensor = build_tensor(2, elements - 1, elements=elements)
    with open_row(tmp_path, bytes(4 * elements), x=tensor) as row:
        many = dict.fromkeys(range(100000), row["x"])
        with pytest.raises(SafePickleError, match="values"):
            RowConverter().plain(many)
