"""Loads a dump as verl's own loaders would return it, with the safe reader.

verl unpickles: every name in a file is imported and called. Here the file is only parsed, and its batch is built from
tensors, arrays and plain values of the same types. A value that can't be built this way is refused, and the step is
generated.
"""

from __future__ import annotations

import os
from functools import partial
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
    """Returns a DataProto for `gen_batch.dp` and `new_batch.dp`, in either serialisation; for `tq_batch.pt` the dict
    {"tensordict", "tags", "keys", "global_steps"} that RolloutTqSkip saved.

    Raises OSError, and SafePickleError with the name of the value that can't be built.
    """
    with ByteSource.open(path) as source:
        contents = read_batch_contents(source)
        return build_queue(contents) if contents.format == "tq_batch" else build_proto(contents)


def build_proto(contents: BatchContents) -> DataProto:
    if contents.unreadable_tensors:
        raise SafePickleError(f"its tensors can't be rebuilt: {contents.unreadable_tensors.name}")
    if contents.tensordict_columns:
        column = contents.tensordict_columns[0]
        if isinstance(value := contents.columns[column], Unreadable):
            raise SafePickleError(f"its field {column!r:.60} can't be rebuilt: {value.name}")
        raise SafePickleError(f"the column {column!r:.60} is among its tensors, where verl writes none")
    builder = NativeBuilder()
    batch = None if contents.format == "new_batch" else TensorDict(build_tensors(contents), batch_size=[contents.rows])
    columns = {name: build_named("column", name, builder.value, column) for name, column in contents.columns.items()}
    return DataProto(batch, columns, build_named("meta", "info", builder.value, contents.meta))


def build_queue(contents: BatchContents) -> dict[str, Any]:
    builder = NativeBuilder()
    build = partial(build_column, builder)
    columns = {name: build_named("column", name, build, column) for name, column in contents.columns.items()}
    batch = TensorDict({**build_tensors(contents), **columns}, batch_size=[contents.rows])
    metadata = {"tags": contents.tags, "keys": contents.keys, **contents.meta}
    values = {name: build_named("meta", name, builder.value, value) for name, value in metadata.items()}
    return {"tensordict": batch, **values}


def build_tensors(contents: BatchContents) -> dict[str, Any]:
    return {name: build_named("tensor", name, tensors.build_tensor, field) for name, field in contents.tensors.items()}


def build_column(builder: NativeBuilder, column: Any) -> Any:
    """Returns a column of a TensorDict that is not a tensor: a value per row, or one for all rows."""
    if isinstance(column, Datum):
        return wrap_value(builder.value(column.value))
    if not isinstance(column, Stack) or not column.values:
        raise SafePickleError(f"it is {column if isinstance(column, Unreadable) else 'no column of values'}")
    if not all(isinstance(item, Datum) for item in column.values):
        raise SafePickleError("it has more than one dimension")
    return NonTensorStack(*[wrap_value(builder.value(item.value)) for item in column.values])


def wrap_value(value: Any) -> NonTensorData:
    """Wraps the value unchanged: the constructor would convert some values to tensors."""
    parts = {"data": value, "_metadata": None, "_is_non_tensor": True}
    return NonTensorData.from_tensordict(TensorDict({}, batch_size=[]), parts)


def build_named(kind: str, name: str, build: Any, value: Any) -> Any:
    try:
        return build(value)
    except SafePickleError as error:
        raise SafePickleError(f"its {kind} {name!r:.60}: {error}") from error
