"""Tensors of a dump, built from what the safe reader says of them: on the CPU, each with memory of its own.

The bytes go from the file right into the memory of the tensor, so that no second copy of them is ever held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import (
    DenseField,
    JaggedField,
    SeparateField,
    TensorField,
    build_dense_field,
    build_jagged_field,
)
from rolloutdeck.safe_pickle.load import DTYPE_SIZES, Data, Nested, Tensor, count_elements, read_bytes_into

Place = tuple[Data, int, int]  # where a row lies: in what, from which byte, how many values along its first dimension


def build_tensor(cells: TensorField) -> torch.Tensor:
    """A field: [rows, ...], or jagged. Raises SafePickleError."""
    if isinstance(cells, DenseField):
        return dense(cells)
    return ragged(cells.dtype, *(of_jagged(cells) if isinstance(cells, JaggedField) else of_separate(cells)))


def dense(block: DenseField) -> torch.Tensor:
    memory = torch.empty(block.row_bytes * block.shape[0], dtype=torch.uint8)
    read_bytes_into(buffer(memory), block.data, block.start)
    return memory.view(dtype(block.dtype)).view(block.shape)


def build_single_tensor(tensor: Tensor) -> torch.Tensor:
    """A tensor inside of a value, which may have no dimension."""
    if tensor.shape:
        return dense(build_dense_field(tensor))
    return dense(build_dense_field(replace(tensor, shape=(1,), stride=(1,)))).view(())


def build_nested_tensor(tensor: Nested) -> torch.Tensor:
    return build_tensor(build_jagged_field(tensor))


def of_jagged(cells: JaggedField) -> tuple[tuple[int, ...], list[Place]]:
    values = cells.values
    if sum(length for _, length in cells.rows) > values.shape[0]:
        raise SafePickleError("a jagged tensor whose rows overlap")
    places = [(values.data, values.start + at * values.row_bytes, length) for at, length in cells.rows]
    return values.shape[1:], places


def of_separate(cells: SeparateField) -> tuple[tuple[int, ...], list[Place]]:
    if cells.layout != "jagged":
        raise SafePickleError(f"a nested tensor of the layout {cells.layout:.40}")
    return cells.blocks[0].shape[1:], [(block.data, block.start, block.shape[0]) for block in cells.blocks]


def ragged(kind: str, rest: tuple[int, ...], places: Sequence[Place]) -> torch.Tensor:
    """One jagged tensor [rows, any, *rest], its rows one after the other."""
    lengths = [length for _, _, length in places]
    ends = [0, *accumulate(lengths)]
    width = count_elements(rest) * DTYPE_SIZES[kind]
    memory = torch.empty(ends[-1] * width, dtype=torch.uint8)
    room = buffer(memory)
    for (data, start, length), at in zip(places, ends, strict=False):
        read_bytes_into(room[at * width : (at + length) * width], data, start)
    values = memory.view(dtype(kind)).view(ends[-1], *rest)
    return torch.nested.nested_tensor_from_jagged(
        values, torch.tensor(ends), min_seqlen=min(lengths, default=0), max_seqlen=max(lengths, default=0)
    )


def buffer(memory: torch.Tensor) -> memoryview:
    """The bytes of a tensor of bytes, to be written."""
    return memory.numpy().data


def dtype(kind: str) -> Any:
    return getattr(torch, kind)
