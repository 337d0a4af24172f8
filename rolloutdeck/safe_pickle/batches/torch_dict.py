"""A dict that `torch.save` wrote, opened without torch: plain values at once, numbers of tensors on demand.

Nothing of it is run; see `machine.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rolloutdeck.safe_pickle.batches.fields import block, numbers
from rolloutdeck.safe_pickle.batches.plain_values import MAX_VALUES, Walk
from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.load import interpreter
from rolloutdeck.safe_pickle.load.placeholders import Tensor
from rolloutdeck.safe_pickle.stream.source import Source
from rolloutdeck.safe_pickle.stream.torch_archive import Archive

MOST_VALUES = 64 * MAX_VALUES  # of all rows together, each counted as often as it is reached
MOST_NUMBERS = 4 << 20  # of one tensor
GRAIN = 8  # characters of text that count as a value: of all rows no more than a dump may hold in bytes
NUMBERS = {int, float}


@contextmanager
def open_saved(path: str | os.PathLike[str]) -> Iterator[dict[Any, Any]]:
    """What the archive holds, as the machine built it; `Rows` makes its rows plain. Raises OSError, and Refused for
    what is no archive of torch or holds no dict. Tensors read from the file until the block ends."""
    with Source.open(path) as source:
        archive = Archive.open(source)
        value = interpreter.load(archive.pickle, archive)
        if not isinstance(value, dict):
            raise Refused("the torch file holds no dict")
        yield value


class Rows:
    """Makes rows plain, one after the other, and counts what all of them hold: a few bytes can stand for any number."""

    def __init__(self) -> None:
        self.left = MOST_VALUES

    def plain(self, row: Any) -> Any:
        """A row as plain values; a tensor of one dimension becomes a list. Raises Refused for too many values."""
        walk = Walk(min(MAX_VALUES, self.left), GRAIN)
        if isinstance(row, dict):
            made: Any = {walk.key(key): self._value(walk, value) for key, value in row.items()}
        else:
            made = walk.plain(row, 0)
        self.left -= walk.spent
        return made

    def _value(self, walk: Walk, value: Any) -> Any:
        if type(value) is list and set(map(type, value)) <= NUMBERS:  # most of a row: token by token is too slow
            walk.spend(len(value))
            return value
        if not isinstance(value, Tensor) or len(value.shape) != 1 or value.shape[0] > MOST_NUMBERS:
            return walk.plain(value, 1)
        walk.spend(value.shape[0])
        return numbers(value.storage.dtype, block(value).whole()[0])
