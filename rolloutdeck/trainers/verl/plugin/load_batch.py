"""What verl's own loaders would return for a dump, built from what the safe reader finds in it.

verl unpickles: whatever a file names is imported and called. Here the file is only read, and its batch is put together
from tensors, arrays and plain values of the same types. What can't be had that way is refused, and costs a generation.
"""

from __future__ import annotations

import os
from typing import Any

from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.protocol import DataProto

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import BatchContents, read_batch_contents
from rolloutdeck.safe_pickle.load import Datum, Stack, Unreadable
from rolloutdeck.safe_pickle.stream import ByteSource
from rolloutdeck.trainers.verl.plugin import tensors
from rolloutdeck.trainers.verl.plugin.native_types import NativeBuilder


def load_native_batch(path: str | os.PathLike[str]) -> Any:
    """A DataProto for `gen_batch.dp` and `new_batch.dp`, in either serialisation; for `tq_batch.pt` the dict
    {"tensordict", "tags", "keys", "global_steps"} that RolloutTqSkip saved.

    Raises OSError, and SafePickleError with the name of what can't be built.
    """
    with ByteSource.open(path) as source:
        found = read_batch_contents(source)
        return queue_of(found) if found.format == "tq_batch" else proto_of(found)


def proto_of(found: BatchContents) -> DataProto:
    if found.unreadable_tensors:
        raise SafePickleError(f"its tensors are not built here: {found.unreadable_tensors.name}")
    if found.tensordict_columns:
        raise SafePickleError(
            f"the column {found.tensordict_columns[0]!r:.60} is among its tensors, where verl writes none"
        )
    maker = NativeBuilder()
    batch = None if found.format == "new_batch" else TensorDict(tensors_of(found), batch_size=[found.rows])
    columns = {name: named("column", name, maker.value, column) for name, column in found.columns.items()}
    return DataProto(batch, columns, named("meta", "info", maker.value, found.meta))


def queue_of(found: BatchContents) -> dict[str, Any]:
    maker = NativeBuilder()
    columns = {
        name: named("column", name, lambda one: column_of(one, maker), one) for name, one in found.columns.items()
    }
    batch = TensorDict({**tensors_of(found), **columns}, batch_size=[found.rows])
    told = {"tags": found.tags, "keys": found.keys, **found.meta}
    return {"tensordict": batch, **{name: named("meta", name, maker.value, one) for name, one in told.items()}}


def tensors_of(found: BatchContents) -> dict[str, Any]:
    return {name: named("tensor", name, tensors.build_tensor, cells) for name, cells in found.tensors.items()}


def column_of(column: Any, maker: NativeBuilder) -> Any:
    """A column of a TensorDict that is no tensor: a value per row, or one for all of them."""
    if isinstance(column, Datum):
        return held(maker.value(column.value))
    if not isinstance(column, Stack) or not column.values:
        raise SafePickleError(f"it is {column if isinstance(column, Unreadable) else 'no column of values'}")
    if not all(isinstance(one, Datum) for one in column.values):
        raise SafePickleError("it has more than one dimension")
    return NonTensorStack(*[held(maker.value(one.value)) for one in column.values])


def held(value: Any) -> NonTensorData:
    """As it is: given to the constructor, some values would be taken for tensors."""
    parts = {"data": value, "_metadata": None, "_is_non_tensor": True}
    return NonTensorData.from_tensordict(TensorDict({}, batch_size=[]), parts)


def named(kind: str, name: str, make: Any, value: Any) -> Any:
    try:
        return make(value)
    except SafePickleError as error:
        raise SafePickleError(f"its {kind} {name!r:.60}: {error}") from error
