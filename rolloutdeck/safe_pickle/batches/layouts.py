"""What a rollout dump of verl holds, taken apart: tensors, columns, meta.

Three layouts, told apart by their content. A DataProto pickle (`DataProto.__getstate__`: tensors as the bytes of a
torch archive or, by `VERL_DATAPROTO_SERIALIZATION_METHOD=numpy`, in parts; columns; meta_info) is `gen_batch.dp`, the
file without an extension of verl <= 0.7 and, without tensors, `new_batch.dp`. A torch archive of a dict with
`tensordict`, `tags`, `keys` and `global_steps` is `tq_batch.pt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rolloutdeck.safe_pickle.batches.fields import (
    TensorField,
    read_consolidated_fields,
    read_numpy_fields,
    read_tensordict_fields,
)
from rolloutdeck.safe_pickle.batches.plain_values import convert_to_plain
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import (
    Array,
    Buffer,
    Consolidated,
    Data,
    Datum,
    Nested,
    Piece,
    Proto,
    Rollout,
    Tensor,
    Tree,
    Unreadable,
    load_pickle,
)
from rolloutdeck.safe_pickle.stream import ByteSource, TorchArchive, is_zip

MAX_ROWS = 1 << 22  # of one step
NO_ARRAY = Unreadable("column that is no array")
CONSOLIDATED_METADATA_KEYS = {"non_tensors", "leaves", "cls", "cls_metadata", "size"}


@dataclass
class BatchContents:
    """`cells`: the tensors; `unread` stands for all of them where they can't be read. `columns`: what else has a value
    per row, as the machine built it; `among` are those that lie in the TensorDict itself. `serialisation`: how verl
    wrote the tensors, `torch` or `numpy`; each is unpickled only by a verl that is set to the same."""

    format: str
    rows: int
    cells: Mapping[str, TensorField]
    columns: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)
    keys: list[Any] = field(default_factory=list)
    tags: list[Any] = field(default_factory=list)
    serialisation: str = "torch"
    among: tuple[str, ...] = ()
    unread: Unreadable | None = None


def read_batch_contents(source: ByteSource) -> BatchContents:
    """Raises SafePickleError when it is none of the layouts, or contradicts itself."""
    return agreed(_of_archive(source) if is_zip(source) else build_proto_contents(load_data_proto(source)))


def agreed(found: BatchContents) -> BatchContents:
    """Raises SafePickleError for tensors of another number of rows than the batch."""
    for name, cells in found.cells.items():
        if cells.field.shape[0] != found.rows:
            raise SafePickleError(f"the tensor {name!r:.60} has {cells.field.shape[0]:,} rows of {found.rows:,}")
    return found


def read_roll_contents(source: ByteSource) -> BatchContents:
    """A DataProto of ROLL: verl's, with the tensors' bytes in a BytesIO, and room for a batch that lies elsewhere."""
    value = load_pickle(source)
    if not isinstance(value, Rollout) or value.state is None:
        raise SafePickleError(f"it holds {_what(value)}, not ROLL's DataProto")
    tensors, columns, elsewhere, meta = value.state
    if elsewhere is not None or not isinstance(tensors, Buffer | None):
        raise SafePickleError("a DataProto whose tensors are not in it")
    return agreed(build_proto_contents(Proto(value.name, (tensors and tensors.data, columns, meta))))


def load_data_proto(source: ByteSource) -> Proto:
    """The DataProto of a pickle, as the machine built it."""
    value = load_pickle(source)
    if not isinstance(value, Proto) or value.state is None:
        raise SafePickleError(f"it holds {_what(value)}, not verl's DataProto")
    return value


def build_proto_contents(value: Proto) -> BatchContents:
    assert value.state is not None
    tensors, columns, meta = value.state
    if not isinstance(columns, dict) or not isinstance(meta, dict):
        raise SafePickleError("a DataProto without columns and meta")
    if not all(isinstance(name, str) for name in columns):
        raise SafePickleError("a DataProto whose columns have no names")
    columns = {name: one if isinstance(one, Array | Unreadable) else NO_ARRAY for name, one in columns.items()}
    found = _tensors(tensors)
    if found is None or isinstance(found, Unreadable):
        kind = "gen_batch" if found else "new_batch"
        return BatchContents(kind, _rows_of(columns), {}, columns, meta, unread=found)
    all_columns = {**found.columns, **columns}
    return replace(found, columns=all_columns, meta=meta, among=tuple(found.columns))


def _tensors(value: Any) -> BatchContents | Unreadable | None:
    """The first part of a DataProto's state; None when it has no tensors, inert when they can't be read."""
    if isinstance(value, Data):
        archive = TorchArchive.open(build_source(value))
        value = load_pickle(archive.pickle, archive)
    read = READ.get(type(value))
    if read is None:
        raise SafePickleError(f"a DataProto whose tensors are {_what(value)}")
    return read(value)


def build_source(data: Data) -> ByteSource:
    if isinstance(data, Piece):
        return data.source.window(data.span.start, data.span.length)
    return ByteSource.of(data)


def _itself(value: Unreadable | None) -> Any:
    return value


def _of_consolidated(value: Consolidated) -> BatchContents:
    told = value.metadata.get("cls_metadata")
    rows = _rows(told.get("batch_size") if isinstance(told, dict) else None)
    others = value.metadata.get("non_tensors") or {}
    columns = (
        {str(name): Datum(convert_to_plain(one)) for name, one in others.items()} if isinstance(others, dict) else {}
    )
    deeper = {
        str(name): Unreadable("tensordict in a tensordict")
        for name in value.metadata
        if name not in CONSOLIDATED_METADATA_KEYS
    }
    return BatchContents("gen_batch", rows, dict(read_consolidated_fields(value)), {**columns, **deeper})


def _of_parts(value: tuple[Any, ...]) -> BatchContents:
    if len(value) != 3 or not isinstance(value[2], dict):
        raise SafePickleError("a DataProto whose tensors are a tuple that verl does not write")
    return BatchContents("gen_batch", _rows(value[0]), dict(read_numpy_fields(value[2])), {}, serialisation="numpy")


def _of_tree(value: Tree) -> BatchContents:
    others = {str(name): one for name, one in value.fields.items() if not isinstance(one, Tensor | Nested)}
    return BatchContents("gen_batch", _rows(value.batch_size), dict(read_tensordict_fields(value)), others)


READ: dict[type, Callable[[Any], BatchContents | Unreadable | None]] = {
    type(None): _itself,
    Unreadable: _itself,
    Consolidated: _of_consolidated,
    tuple: _of_parts,
    Tree: _of_tree,
}


def _of_archive(source: ByteSource) -> BatchContents:
    archive = TorchArchive.open(source)
    value = load_pickle(archive.pickle, archive)
    if not isinstance(value, dict) or not isinstance(value.get("tensordict"), Tree):
        raise SafePickleError(f"a torch file that holds {_what(value)}, not the batch of a TransferQueue")
    found = _of_tree(value["tensordict"])
    keys, tags = (_per_row(value, name, found.rows) for name in ("keys", "tags"))
    meta = {name: one for name, one in value.items() if name not in ("tensordict", "keys", "tags")}
    return BatchContents(
        "tq_batch", found.rows, found.cells, found.columns, meta, keys, tags, among=tuple(found.columns)
    )


def _per_row(value: Mapping[Any, Any], name: str, rows: int) -> list[Any]:
    found = value.get(name)
    if not isinstance(found, list) or len(found) != rows:
        raise SafePickleError(f"the batch of a TransferQueue without one of `{name}` per row")
    return found


def _rows(batch_size: Any) -> int:
    rows = batch_size[0] if isinstance(batch_size, tuple | list) and len(batch_size) == 1 else None
    if type(rows) is not int or not 0 <= rows <= MAX_ROWS:
        raise SafePickleError("a batch that does not say how many rows it has")
    return rows


def _rows_of(columns: Mapping[str, Any]) -> int:
    return _rows([next((one.shape[0] for one in columns.values() if isinstance(one, Array) and one.shape), 0)])


def _what(value: Any) -> str:
    return str(value) if isinstance(value, Unreadable) else f"a {type(value).__name__.lower()}"
