"""A rollout dump of verl, opened: tensors by field and row, other columns, meta. Nothing of it is run, nothing of it
is read before it is asked for, and torch, tensordict and verl are not needed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rolloutdeck.safe_pickle.batches import fields
from rolloutdeck.safe_pickle.batches.fields import TensorInfo
from rolloutdeck.safe_pickle.batches.layouts import BatchContents, read_batch_contents, read_roll_contents
from rolloutdeck.safe_pickle.batches.plain_values import (
    MAX_PLAIN_VALUES,
    PlainConverter,
    convert_column,
    convert_to_plain,
)
from rolloutdeck.safe_pickle.batches.token_ids import RowTokens, extract_row_tokens
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource

if TYPE_CHECKING:
    import numpy as np

MAX_TOKENS = 4 << 20  # of one row, as Python numbers in memory
PADDING_KEY = re.compile(r"pad[0-9a-f]*_\d+_\d+\Z")  # keys of the rows with which V1 fills up a batch


@contextmanager
def open_batch(path: str | os.PathLike[str]) -> Iterator[RolloutBatch]:
    """`gen_batch.dp`, `tq_batch.pt`, `new_batch.dp`, or the one file of verl <= 0.7. Raises OSError, and
    SafePickleError for anything else. The batch reads from the file until the block ends."""
    with ByteSource.open(path) as source:
        yield RolloutBatch(read_batch_contents(source))


@contextmanager
def open_roll_batch(path: str | os.PathLike[str]) -> Iterator[RolloutBatch]:
    """A DataProto that ROLL pickled, as `open_batch`; its tensors have their own names, see `RolloutBatch.numbers`."""
    with ByteSource.open(path) as source:
        yield RolloutBatch(read_roll_contents(source))


class BatchColumns(Mapping[str, list[Any]]):
    """The columns that are no tensors: name -> a plain value per row, made anew each time it is asked for."""

    def __init__(self, found: BatchContents) -> None:
        self._found = found
        self._spent: dict[str, int] = {}  # values per column, so that many columns can't be dear one by one

    def __getitem__(self, name: str) -> list[Any]:
        raw = self._found.columns[name]
        walk = PlainConverter(MAX_PLAIN_VALUES - sum(spent for other, spent in self._spent.items() if other != name))
        try:
            return convert_column(raw, self._found.rows, walk)
        finally:
            self._spent[name] = walk.spent

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.columns)

    def __len__(self) -> int:
        return len(self._found.columns)


class RolloutBatch:
    """`format`: gen_batch, new_batch or tq_batch. `serialisation`: torch or numpy."""

    def __init__(self, found: BatchContents) -> None:
        self._found = found
        self.format = found.format
        self.rows = found.rows
        self.serialisation = found.serialisation
        self.columns = BatchColumns(found)

    @cached_property
    def fields(self) -> dict[str, TensorInfo]:
        """The tensors."""
        return {name: cells.field for name, cells in self._found.cells.items()}

    @cached_property
    def meta(self) -> dict[str, Any]:
        """verl's `meta_info`; of a TransferQueue's batch what it says besides its rows, `global_steps`."""
        return {str(name): convert_to_plain(value) for name, value in self._found.meta.items()}

    @cached_property
    def keys(self) -> list[str]:
        """`{uuid}_{session}_{index}` per row of a TransferQueue's batch; else empty."""
        return [str(convert_to_plain(key)) for key in self._found.keys]

    @cached_property
    def tags(self) -> list[dict[str, Any]]:
        """What the queue noted per row: `status prompt_len response_len seq_len global_steps ...`; else empty."""
        return [tag if isinstance(tag, dict) else {} for tag in convert_to_plain(self._found.tags)]

    def is_padding(self, row: int) -> bool:
        """Whether the row only fills up a batch, as its tags or its key say. Raises IndexError."""
        if not self.keys:
            return False
        return bool(self.tags[row].get("is_padding")) or bool(PADDING_KEY.match(self.keys[row]))

    def tensor(self, name: str, row: int | None = None) -> np.ndarray:
        """A field, or one row of it: a jagged one at its own length. Raises KeyError, IndexError, and ValueError for
        a jagged field without a row."""
        cells = self._found.cells[name]
        data, shape = cells.whole() if row is None else cells.row(self._checked(row))
        return fields.decode_array(cells.dtype, data, shape)

    def column(self, name: str) -> list[Any]:
        """A plain value per row; what can't be one is an inert `Unreadable`. Raises KeyError and SafePickleError."""
        return self.columns[name]

    def tokens(self, row: int) -> RowTokens:
        """Raises IndexError, and SafePickleError when the dump holds no tokens."""
        self._checked(row)
        responses = self._found.cells.get("responses")
        return extract_row_tokens(lambda name: self.numbers(name, row), padded=isinstance(responses, fields.DenseField))

    def numbers(self, name: str, row: int) -> list[Any] | None:
        """A field's row as plain numbers, padding and all; None where there is no such field. Raises IndexError, and
        SafePickleError for a row that is too long."""
        cells = self._found.cells.get(name)
        if cells is None:
            return None
        data, shape = cells.row(self._checked(row))
        if math.prod(shape) > MAX_TOKENS:
            raise SafePickleError(f"a row of {math.prod(shape):,} tokens; at most {MAX_TOKENS:,} are read")
        return fields.decode_numbers(cells.dtype, data)

    def _checked(self, row: int) -> int:
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        return row
