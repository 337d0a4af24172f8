"""Masked rows of a replayed batch: marked when the batch is loaded, read where verl computes its advantages.

verl reorders and joins the rows between the two. So the mark travels with its row: in V0 as a column of the batch, in
V1 as a tag of the row in the TransferQueue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rolloutdeck.errors import NotReplayableError

MARK = "rolloutdeck_masked"


def mark_rows(batches: Mapping[str, Any], rows: Mapping[str, Collection[int]]) -> int:
    """Marks the `rows` of each file in its loaded batch. Returns their number. Raises NotReplayableError."""
    for name, numbers in rows.items():
        if not numbers:
            continue
        if name not in batches:
            raise NotReplayableError(f"{name} has samples to mask and is not replayed")
        batch = batches[name]
        count = len(batch["keys"]) if isinstance(batch, dict) else len(batch)
        if max(numbers) >= count:
            raise NotReplayableError(f"{name} has {count} rows, and row {max(numbers)} is to be masked")
        if isinstance(batch, dict):
            batch["tags"] = mark_tags(batch["tags"], numbers)
        else:
            mark_column(batch, count, numbers)
    return sum(map(len, rows.values()))


def mark_tags(tags: Sequence[Any], numbers: Collection[int]) -> list[Any]:
    return [{**tag, MARK: True} if index in set(numbers) else tag for index, tag in enumerate(tags)]


def mark_column(batch: Any, count: int, numbers: Collection[int]) -> None:
    import numpy

    column = numpy.zeros(count, dtype=object)
    for index in range(count):
        column[index] = index in numbers
    batch.non_tensor_batch[MARK] = column


def take_padded_rows(data: Any) -> frozenset[int]:
    """Returns the marked rows of a batch of V0, and removes the column."""
    column = data.non_tensor_batch.pop(MARK, None)
    return frozenset() if column is None else frozenset(index for index, marked in enumerate(column) if marked)


def find_jagged_rows(meta: Any) -> frozenset[int]:
    """Returns the marked rows of a batch of V1."""
    return frozenset(index for index, tag in enumerate(meta.tags) if tag.get(MARK))
