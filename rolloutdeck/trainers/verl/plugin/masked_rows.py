"""Masked rows of a replayed batch: marked when the batch is loaded, read where verl computes its advantages.

verl reorders and joins the rows between the two. So the mark travels with its row: in V0 as a column of the batch, in
V1 as a tag of the row in the TransferQueue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.safe_pickle.batches import is_padding_row

MASKED_TAG = "rolloutdeck_masked"


def tag_masked_rows(batches: Mapping[str, Any], rows: Mapping[str, Collection[int]]) -> int:
    """Marks the `rows` of each file in its loaded batch. Returns their number. Raises NotReplayableError.

    `rows` are numbers from 0, not counting padding, which only batches of V1 have.
    """
    for name, numbers in rows.items():
        if not numbers:
            continue
        if name not in batches:
            raise NotReplayableError(f"{name} has samples to mask and is not replayed")
        batch = batches[name]
        real = list_real_rows(batch)
        if max(numbers) >= len(real):
            raise NotReplayableError(f"{name} has {len(real)} rows, and row {max(numbers)} is to be masked")
        if isinstance(batch, dict):
            batch["tags"] = mark_tags(batch["tags"], {real[number] for number in numbers})
        else:
            mark_column(batch, len(real), numbers)
    return sum(map(len, rows.values()))


def build_row_numbers(count: int) -> Any:
    """Returns a column with the number of each row, from 0."""
    import numpy

    return numpy.arange(count)


def list_real_rows(batch: Any) -> Sequence[int]:
    """Returns the indices of the rows that are no padding."""
    if not isinstance(batch, dict):
        return range(len(batch))
    pairs = enumerate(zip(batch["keys"], batch["tags"], strict=True))
    return [index for index, (key, tag) in pairs if not is_padding_row(str(key), tag)]


def mark_tags(tags: Sequence[Any], indices: Collection[int]) -> list[Any]:
    return [{**tag, MASKED_TAG: True} if index in indices else tag for index, tag in enumerate(tags)]


def mark_column(batch: Any, count: int, numbers: Collection[int]) -> None:
    import numpy

    column = numpy.zeros(count, dtype=object)
    for index in range(count):
        column[index] = index in numbers
    batch.non_tensor_batch[MASKED_TAG] = column


def take_padded_rows(data: Any) -> frozenset[int]:
    """Returns the marked rows of a batch of V0, and removes the column."""
    column = data.non_tensor_batch.pop(MASKED_TAG, None)
    return frozenset() if column is None else frozenset(index for index, marked in enumerate(column) if marked)


def find_jagged_rows(meta: Any) -> frozenset[int]:
    """Returns the marked rows of a batch of V1."""
    return frozenset(index for index, tag in enumerate(meta.tags) if tag.get(MASKED_TAG))
