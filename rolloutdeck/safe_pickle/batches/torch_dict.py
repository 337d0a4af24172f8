"""A dict that `torch.save` wrote, opened without torch: plain values at once, numbers of tensors on demand.

Nothing of it is run; see `machine.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rolloutdeck.safe_pickle.batches.fields import build_dense_field, decode_numbers
from rolloutdeck.safe_pickle.batches.plain_values import MAX_PLAIN_VALUES, PlainConverter
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Tensor, load_pickle
from rolloutdeck.safe_pickle.stream import ByteSource, TorchArchive

MAX_ROW_VALUES = 64 * MAX_PLAIN_VALUES  # of all rows together, each counted as often as it is reached
MAX_TENSOR_NUMBERS = 4 << 20  # of one tensor
GRAIN = 8  # characters of text that count as a value: of all rows no more than a dump may hold in bytes
NUMBERS = {int, float}


@contextmanager
def open_torch_dict(path: str | os.PathLike[str]) -> Iterator[dict[Any, Any]]:
    """What the archive holds, as the machine built it; `RowConverter` makes its rows plain. Raises OSError, and
    SafePickleError for what is no archive of torch or holds no dict. Tensors read from the file until the block
    ends."""
    with ByteSource.open(path) as source:
        archive = TorchArchive.open(source)
        value = load_pickle(archive.pickle, archive)
        if not isinstance(value, dict):
            raise SafePickleError("the torch file holds no dict")
        yield value


class RowConverter:
    """Makes rows plain, one after the other, and counts what all of them hold: a few bytes can stand for any number."""

    def __init__(self) -> None:
        self.left = MAX_ROW_VALUES

    def plain(self, row: Any) -> Any:
        """A row as plain values; a tensor of one dimension becomes a list. Raises SafePickleError for too many
        values."""
        walk = PlainConverter(min(MAX_PLAIN_VALUES, self.left), GRAIN)
        if isinstance(row, dict):
            made: Any = {walk.key(key): self._value(walk, value) for key, value in row.items()}
        else:
            made = walk.plain(row, 0)
        self.left -= walk.spent
        return made

    def _value(self, walk: PlainConverter, value: Any) -> Any:
        if type(value) is list and set(map(type, value)) <= NUMBERS:  # most of a row: token by token is too slow
            walk.spend(len(value))
            return value
        if not isinstance(value, Tensor) or len(value.shape) != 1 or value.shape[0] > MAX_TENSOR_NUMBERS:
            return walk.plain(value, 1)
        walk.spend(value.shape[0])
        return decode_numbers(value.storage.dtype, build_dense_field(value).whole()[0])
