"""Opens a dict that `torch.save` wrote, without torch. Nothing of it is executed; tensors are read on demand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rolloutdeck.safe_pickle.batches.fields import build_dense_field, decode_numbers
from rolloutdeck.safe_pickle.batches.plain_values import MAX_PLAIN_VALUES, PlainConverter
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import DTYPE_SIZES, Tensor, Unreadable, load_archive
from rolloutdeck.safe_pickle.stream import ByteSource

MAX_ROW_VALUES = 64 * MAX_PLAIN_VALUES  # of all rows; a shared value counts each time
MAX_TENSOR_NUMBERS = 4 << 20  # of one tensor
MAX_TENSOR_SPAN = 16 << 20  # numbers in the storage from the first to the last one of a tensor
SKIPPED_PER_VALUE = 64  # numbers between those of a tensor that take as much time as one value
TEXT_UNIT = 8  # characters of text per value: the texts of all rows are at most as long as the largest dump
BYTE_UNIT = 64  # bytes per value: the rows of a group share their images and videos
NUMBERS = {int, float}


@contextmanager
def open_torch_dict(path: str | os.PathLike[str]) -> Iterator[dict[Any, Any]]:
    """Yields the dict in the archive, as the interpreter built it; `RowConverter` converts its rows.

    Tensors read from the file until the block ends. Raises OSError, and SafePickleError if it is not an archive of
    torch or does not contain a dict.
    """
    with ByteSource.open(path) as source:
        value = load_archive(source)
        if not isinstance(value, dict):
            raise SafePickleError("the torch file does not contain a dict")
        yield value


class RowConverter:
    """Converts rows to plain values and limits their total number: a few bytes can represent any number of values."""

    def __init__(self) -> None:
        self.remaining = MAX_ROW_VALUES

    def plain(self, row: Any) -> Any:
        """Returns a row as plain values; a flat tensor becomes a list.

        Raises TooManyValuesError if the row is too large, SafePickleError if all rows together are.
        """
        converter = PlainConverter(self.remaining, TEXT_UNIT, BYTE_UNIT)
        try:
            if isinstance(row, dict):
                return {converter.convert_key(key): self._convert_value(converter, row[key]) for key in row}
            return converter.convert(row, 0)
        finally:
            self.remaining -= converter.value_count

    def _convert_value(self, converter: PlainConverter, value: Any) -> Any:
        # Most of a row are lists of numbers. To convert them token by token is too slow.
        if type(value) is list and set(map(type, value)) <= NUMBERS:
            converter.count_values(len(value))
            return value
        if not isinstance(value, Tensor) or len(value.shape) != 1 or value.shape[0] > MAX_TENSOR_NUMBERS:
            return converter.convert(value, 1)
        size, step = value.shape[0], value.stride[0] if value.shape[0] > 1 else 1
        if type(step) is not int or not 0 <= size * step <= MAX_TENSOR_SPAN:
            return Unreadable(f"tensor of shape {value.shape} that is spread over too many numbers")
        converter.count_values(size + size * step // SKIPPED_PER_VALUE)
        try:
            return _read_flat_tensor(value, size, step)
        except SafePickleError as error:
            return Unreadable(str(error))


def _read_flat_tensor(tensor: Tensor, size: int, step: int) -> list[Any]:
    """Returns `size` numbers, every `step`-th in the storage. A column of a matrix has such a step."""
    dtype = tensor.storage.dtype
    width, span = DTYPE_SIZES[dtype], (size - 1) * step + 1 if size else 0
    data = build_dense_field(replace(tensor, shape=(span,), stride=(1,))).read_all()[0]
    if step > 1:
        data = b"".join([data[at : at + width] for at in range(0, len(data), step * width)])
    return decode_numbers(dtype, data if step else data * size)
