"""Builds tensors of a dump from the safe reader's descriptions: on the CPU, each with its own memory.

The bytes are read from the file directly into the memory of the tensor, so that there is no second copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from rolloutdeck.safe_pickle import SafePickleError, batches
from rolloutdeck.safe_pickle.load import DTYPE_SIZES, Data, Nested, Tensor, count_elements, read_bytes_into

RowPosition = tuple[Data, int, int]  # a row: its data, first byte, number of values along its first dimension


def build_tensor(field: batches.TensorField) -> torch.Tensor:
    """Returns a field: [rows, ...], or jagged. Raises SafePickleError."""
    if isinstance(field, batches.DenseField):
        return build_dense(field)
    shape, rows = list_jagged_rows(field) if isinstance(field, batches.JaggedField) else list_separate_rows(field)
    return build_jagged(field.dtype, shape, rows)


def build_dense(block: batches.DenseField) -> torch.Tensor:
    memory = torch.empty(block.row_bytes * block.shape[0], dtype=torch.uint8)
    read_bytes_into(memory.numpy().data, block.data, block.start)
    return memory.view(getattr(torch, block.dtype)).view(block.shape)


def build_single_tensor(tensor: Tensor) -> torch.Tensor:
    """Returns a tensor inside of a value, which may have no dimension."""
    if tensor.shape:
        return build_dense(batches.build_dense_field(tensor))
    return build_dense(batches.build_dense_field(replace(tensor, shape=(1,), stride=(1,)))).view(())


def build_nested_tensor(tensor: Nested) -> torch.Tensor:
    return build_tensor(batches.build_jagged_field(tensor))


def list_jagged_rows(field: batches.JaggedField) -> tuple[tuple[int, ...], list[RowPosition]]:
    values = field.values
    if sum(length for _, length in field.rows) > values.shape[0]:
        raise SafePickleError("a jagged tensor whose rows overlap")
    positions = [(values.data, values.start + row * values.row_bytes, length) for row, length in field.rows]
    return values.shape[1:], positions


def list_separate_rows(field: batches.SeparateField) -> tuple[tuple[int, ...], list[RowPosition]]:
    if field.layout != "jagged":
        raise SafePickleError(f"a nested tensor of the layout {field.layout:.40}")
    return field.blocks[0].shape[1:], [(block.data, block.start, block.shape[0]) for block in field.blocks]


def build_jagged(dtype_name: str, inner_shape: tuple[int, ...], positions: Sequence[RowPosition]) -> torch.Tensor:
    """Returns one jagged tensor [rows, any, *rest] with the rows one after the other."""
    lengths = [length for _, _, length in positions]
    offsets = [0, *accumulate(lengths)]
    width = count_elements(inner_shape) * DTYPE_SIZES[dtype_name]
    memory = torch.empty(offsets[-1] * width, dtype=torch.uint8)
    target = memory.numpy().data  # a writable view
    for (data, start, length), offset in zip(positions, offsets, strict=False):
        read_bytes_into(target[offset * width : (offset + length) * width], data, start)
    values = memory.view(getattr(torch, dtype_name)).view(offsets[-1], *inner_shape)
    low, high = min(lengths, default=0), max(lengths, default=0)
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor(offsets), min_seqlen=low, max_seqlen=high)
