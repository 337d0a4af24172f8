"""Splits a rollout dump of verl into tensors, columns and meta.

The content decides which of three layouts it is. A DataProto pickle contains (`DataProto.__getstate__`) tensors,
columns and meta_info. Its tensors are the bytes of a torch archive or, with
`VERL_DATAPROTO_SERIALIZATION_METHOD=numpy`, separate arrays. It is `gen_batch.dp`, or the file without an extension of
verl <= 0.7, or, without tensors, `new_batch.dp`. A torch archive of a dict with `tensordict`, `tags`, `keys` and
`global_steps` is `tq_batch.pt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutdeck.safe_pickle import load
from rolloutdeck.safe_pickle.batches import fields
from rolloutdeck.safe_pickle.batches.fields import TensorField
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource, is_zip

MAX_ROWS = 1 << 22  # of one step
NOT_AN_ARRAY = load.Unreadable("column that is not an array")
CONSOLIDATED_METADATA_KEYS = {"non_tensors", "leaves", "cls", "cls_metadata", "size"}


@dataclass
class BatchContents:
    """The parts of a dump.

    `tensors`: by name. If they can't be read, the dict is empty and `unreadable_tensors` says why. `columns`: all other
    values per row, as the interpreter built them. `tensordict_columns`: the columns that are stored in the TensorDict.
    `serialisation`: how verl wrote the tensors, `torch` or `numpy`. Only a verl with the same setting unpickles them.
    """

    format: str
    rows: int
    tensors: Mapping[str, TensorField]
    columns: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    keys: list[Any] = field(default_factory=list)
    tags: list[Any] = field(default_factory=list)
    serialisation: str = "torch"
    tensordict_columns: tuple[str, ...] = ()
    unreadable_tensors: load.Unreadable | None = None


def read_batch_contents(source: ByteSource) -> BatchContents:
    """Returns the parts of a verl dump. Raises SafePickleError if it has none of the layouts, or contradicts itself."""
    contents = _read_queue_archive(source) if is_zip(source) else build_proto_contents(load_data_proto(source))
    return check_row_counts(contents)


def check_row_counts(contents: BatchContents) -> BatchContents:
    """Returns `contents`. Raises SafePickleError if a tensor has a different number of rows than the batch."""
    for name, tensor in contents.tensors.items():
        if tensor.info.shape[0] != contents.rows:
            raise SafePickleError(f"the tensor {name!r:.60} has {tensor.info.shape[0]:,} rows of {contents.rows:,}")
    return contents


def read_roll_contents(source: ByteSource) -> BatchContents:
    """Returns the parts of ROLL's DataProto, whose tensors are in a BytesIO. Raises SafePickleError."""
    value = load.load_pickle(source)
    if not isinstance(value, load.Rollout) or value.state is None:
        raise SafePickleError(f"it contains {_describe(value)}, not ROLL's DataProto")
    tensors, columns, external_batch, meta = value.state
    if external_batch is not None or not isinstance(tensors, load.Buffer | None):
        raise SafePickleError("a DataProto whose tensors are outside the file")
    return check_row_counts(build_proto_contents(load.Proto(value.name, (tensors and tensors.data, columns, meta))))


def load_data_proto(source: ByteSource) -> load.Proto:
    """Returns the DataProto of a pickle, as the interpreter built it. Raises SafePickleError if it is anything else."""
    value = load.load_pickle(source)
    if not isinstance(value, load.Proto) or value.state is None:
        raise SafePickleError(f"it contains {_describe(value)}, not verl's DataProto")
    return value


def build_proto_contents(value: load.Proto) -> BatchContents:
    assert value.state is not None
    tensors, columns, meta = value.state
    if not isinstance(columns, dict) or not isinstance(meta, dict):
        raise SafePickleError("a DataProto without columns and meta")
    if not all(isinstance(name, str) for name in columns):
        raise SafePickleError("a DataProto whose columns have no names")
    arrays = {name: item for name, item in columns.items() if isinstance(item, load.Array | load.Unreadable)}
    columns = {**dict.fromkeys(columns, NOT_AN_ARRAY), **arrays}
    contents = _read_tensors(tensors)
    if contents is None or isinstance(contents, load.Unreadable):
        kind = "gen_batch" if contents else "new_batch"
        return BatchContents(kind, _count_column_rows(columns), {}, columns, meta, unreadable_tensors=contents)
    all_columns = {**contents.columns, **columns}
    return replace(contents, columns=all_columns, meta=meta, tensordict_columns=tuple(contents.columns))


def _read_tensors(value: Any) -> BatchContents | load.Unreadable | None:
    """Reads the first part of a DataProto's state. Returns None if it has no tensors, inert if they can't be read."""
    if isinstance(value, load.Data):
        value = load.load_archive(build_source(value))
    if value is None or isinstance(value, load.Unreadable):
        return value
    reader = TENSOR_READERS.get(type(value))
    if reader is None:
        raise SafePickleError(f"a DataProto whose tensors are {_describe(value)}")
    return reader(value)


def build_source(data: load.Data) -> ByteSource:
    if isinstance(data, load.Piece):
        return data.source.window(data.span.start, data.span.length)
    return ByteSource.from_bytes(data)


def _read_consolidated(value: load.Consolidated) -> BatchContents:
    class_metadata = value.metadata.get("cls_metadata")
    rows = _parse_row_count(class_metadata.get("batch_size") if isinstance(class_metadata, dict) else None)
    other_values = value.metadata.get("non_tensors")
    if not isinstance(other_values, dict):
        other_values = {}
    columns: dict[str, Any] = {str(name): load.Datum(_get_value(item)) for name, item in other_values.items()}
    nested = (name for name in value.metadata if name not in CONSOLIDATED_METADATA_KEYS)
    columns |= {str(name): load.Unreadable("tensordict in a tensordict") for name in nested}
    return BatchContents("gen_batch", rows, dict(fields.read_consolidated_fields(value)), columns)


def _get_value(item: Any) -> Any:
    """`item`: (value, batch size, device), as tensordict stores a value that is not a tensor."""
    return item[0] if isinstance(item, tuple) and len(item) in (2, 3) else item


def _read_numpy_parts(value: tuple[Any, ...]) -> BatchContents:
    if len(value) != 3 or not isinstance(value[2], dict):
        raise SafePickleError("a DataProto whose tensors are a tuple that verl does not write")
    rows = _parse_row_count(value[0])
    return BatchContents("gen_batch", rows, dict(fields.read_numpy_fields(value[2])), {}, serialisation="numpy")


def _read_tensordict(value: load.Tree) -> BatchContents:
    rows, columns = _parse_row_count(value.batch_size), {}
    for name, item in value.fields.items():
        if not isinstance(item, load.Tensor | load.Nested):
            columns[str(name)] = item
        elif isinstance(item, load.Tensor) and not fields.is_contiguous(item):
            columns[str(name)] = load.Unreadable(fields.describe_not_contiguous(item))
    return BatchContents("gen_batch", rows, dict(fields.read_tensordict_fields(value)), columns)


TENSOR_READERS: dict[type, Callable[[Any], BatchContents]] = {
    load.Consolidated: _read_consolidated,
    tuple: _read_numpy_parts,
    load.Tree: _read_tensordict,
}


def _read_queue_archive(source: ByteSource) -> BatchContents:
    value = load.load_archive(source)
    if not isinstance(value, dict) or not isinstance(value.get("tensordict"), load.Tree):
        raise SafePickleError(f"a torch file that contains {_describe(value)}, not the batch of a TransferQueue")
    contents = _read_tensordict(value["tensordict"])
    keys, tags = (_get_row_values(value, name, contents.rows) for name in ("keys", "tags"))
    meta = {name: member for name, member in value.items() if name not in ("tensordict", "keys", "tags")}
    names = tuple(contents.columns)
    return replace(contents, format="tq_batch", meta=meta, keys=keys, tags=tags, tensordict_columns=names)


def _get_row_values(value: Mapping[Any, Any], name: str, rows: int) -> list[Any]:
    contents = value.get(name)
    if not isinstance(contents, list) or len(contents) != rows:
        raise SafePickleError(f"the batch of a TransferQueue without one value of `{name}` per row")
    return contents


def _parse_row_count(batch_size: Any) -> int:
    rows = batch_size[0] if isinstance(batch_size, tuple | list) and len(batch_size) == 1 else None
    if type(rows) is not int or not 0 <= rows <= MAX_ROWS:
        raise SafePickleError("a batch without its number of rows")
    return rows


def _count_column_rows(columns: Mapping[str, Any]) -> int:
    counts = (column.shape[0] for column in columns.values() if isinstance(column, load.Array) and column.shape)
    return _parse_row_count([next(counts, 0)])


def _describe(value: Any) -> str:
    return str(value) if isinstance(value, load.Unreadable) else f"a {type(value).__name__.lower()}"
