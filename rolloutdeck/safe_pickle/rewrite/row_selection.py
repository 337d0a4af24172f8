"""Selects rows of a batch as the interpreter built it: the same types, fewer values.

Numbers are not read. The selected part of a tensor is a list of byte ranges, which are copied when it is written.
Raises SafePickleError for a value that can't be split into rows (a tensor that is not contiguous, an unreadable value).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rolloutdeck.safe_pickle import batches, load
from rolloutdeck.safe_pickle.batches import DenseField
from rolloutdeck.safe_pickle.errors import SafePickleError

ALIGNMENT = 8  # in bytes, of the fields of a consolidated TensorDict


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes of `data` from position `at`."""

    data: load.Data
    at: int
    length: int

    def pieces(self, block_bytes: int) -> Iterator[bytes]:
        for at in range(0, self.length, block_bytes):
            yield load.read_byte_range(self.data, self.at + at, min(block_bytes, self.length - at))


@dataclass(frozen=True, slots=True)
class JoinedBytes:
    """Several byte ranges, one after the other."""

    parts: Sequence[ByteRange]

    def __len__(self) -> int:
        return sum(part.length for part in self.parts)

    def pieces(self, block_bytes: int) -> Iterator[bytes]:
        for part in self.parts:
            yield from part.pieces(block_bytes)


@dataclass(frozen=True, slots=True)
class SelectedTensor:
    """A tensor in row-major order without a storage."""

    dtype: str
    shape: tuple[int, ...]
    data: JoinedBytes


@dataclass(frozen=True, slots=True)
class SelectedJaggedTensor:
    """A jagged tensor without a storage."""

    values: SelectedTensor
    offsets: SelectedTensor


class RowSelection:
    """Selects the rows `keep`, in order, from a batch of `rows` rows."""

    def __init__(self, rows: int, keep: Sequence[int]) -> None:
        self.rows = rows
        self.keep = keep

    def build_proto(self, batch: load.Proto, tensors: Any) -> load.Proto:
        """Selects the rows of a DataProto. `tensors` replaces the first part of its state."""
        assert batch.state is not None
        _, columns, meta = batch.state
        columns = {name: self.select_column(member) for name, member in columns.items()}
        return replace(batch, state=(tensors, columns, meta))

    def select_numpy_parts(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Selects from verl's numpy format: (batch size, device, name -> tensor or (layout, tensors of rows))."""
        size, device, fields = parts
        selected = {name: self._select_numpy_field(member) for name, member in fields.items()}
        return self.select_size(size), device, selected

    def _select_numpy_field(self, field: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(field) == 2:
            return field[0], self.select_values(field[1])
        dtype, shape, flat = field
        selected = self.select_dense(DenseField(dtype, shape, flat.data))
        return dtype, load.Size(selected.shape), replace(flat, shape=(len(selected.data),), data=selected.data)

    def select_column(self, value: Any) -> Any:
        """Selects from a numpy column."""
        is_array = isinstance(value, load.Array) and isinstance(value.dtype, load.Dtype)
        if not is_array or value.shape[:1] != (self.rows,):
            raise SafePickleError("it has a column without a value per row")
        assert value.data is not None
        width = len(value.data) // max(self.rows, 1)
        if isinstance(value.data, list):
            selected: Any = [member for row in self.keep for member in value.data[row * width : (row + 1) * width]]
        else:
            selected = self._join_rows(value.data, 0, width)
        return replace(value, shape=(len(self.keep), *value.shape[1:]), data=selected)

    def select_consolidated(self, batch: load.Consolidated) -> load.Consolidated:
        class_metadata = batch.metadata.get("cls_metadata")
        if batch.metadata.get("non_tensors") or set(batch.metadata) - batches.CONSOLIDATED_METADATA_KEYS:
            raise SafePickleError("it has values among its tensors that are not tensors")
        if not isinstance(class_metadata, dict):
            raise SafePickleError("a TensorDict without its number of rows")
        leaves, parts, at = {}, [], 0
        for name, field in batches.read_consolidated_fields(batch):
            selected = self.select_dense(field)
            length = len(selected.data)
            padding = -length % ALIGNMENT
            leaves[name] = ("torch." + selected.dtype, list(selected.shape), at, at + length + padding, padding)
            parts += [*selected.data.parts, ByteRange(bytes(padding), 0, padding)]
            at += length + padding
        metadata = {
            **{name: member for name, member in batch.metadata.items() if name != "size"},
            "leaves": leaves,
            "cls_metadata": {**class_metadata, "batch_size": [*self.select_size(class_metadata.get("batch_size"))]},
        }
        return load.Consolidated(metadata, SelectedTensor("uint8", (at,), JoinedBytes(parts)))  # type: ignore[arg-type]

    def select_tensordict(self, batch: load.Tree) -> load.Tree:
        fields = {name: self.select_tensordict_field(member) for name, member in batch.fields.items()}
        state = {**batch.state, "_tensordict": fields, "_batch_size": self.select_size(batch.batch_size)}
        return load.Tree(fields, state["_batch_size"], state)

    def select_tensordict_field(self, value: Any) -> Any:
        select = SELECTORS_BY_TYPE.get(type(value))
        if select is None:
            raise SafePickleError(f"it has {value if hasattr(value, 'name') else 'a field'} that has no rows")
        return select(self, value)

    def select_tensor(self, value: load.Tensor) -> SelectedTensor:
        return self.select_dense(batches.build_dense_field(value))

    def select_nested(self, value: load.Nested) -> SelectedJaggedTensor:
        field = batches.build_jagged_field(value)
        if len(field.rows) != self.rows:
            raise SafePickleError("a jagged tensor with a different number of rows than its batch")
        values, lengths = field.values, [field.rows[row][1] for row in self.keep]
        width = values.row_bytes
        spans = [(values.start + at * width, length * width) for at, length in (field.rows[row] for row in self.keep)]
        joined = JoinedBytes([ByteRange(values.data, *span) for span in merge_spans(spans)])
        bounds = b"".join(bound.to_bytes(8, "little") for bound in accumulate(lengths, initial=0))
        return SelectedJaggedTensor(
            SelectedTensor(values.dtype, (sum(lengths), *values.shape[1:]), joined),
            SelectedTensor("int64", (len(lengths) + 1,), JoinedBytes([ByteRange(bounds, 0, len(bounds))])),
        )

    def select_stack(self, value: load.Stack) -> load.Stack:
        if value.state.get("stack_dim") != 0:
            raise SafePickleError("a column that is not stacked along its rows")
        values = self.select_values(value.values)
        state = {**value.state, "tensordicts": values}
        if state.get("_batch_size") is not None:
            state["_batch_size"] = self.select_size(state["_batch_size"])
        return load.Stack(values, state)

    def select_datum(self, value: load.Datum) -> load.Datum:
        """Selects from one value for all rows. Its empty TensorDict has as many rows as the batch."""
        tensordict = value.state.get("tensordict")
        if not isinstance(tensordict, load.Tree) or tensordict.fields:
            raise SafePickleError("a value with additional tensors")
        selected = self.select_tensordict(tensordict) if tensordict.batch_size else tensordict
        return load.Datum(value.value, {**value.state, "tensordict": selected})

    def select_values(self, values: Sequence[Any]) -> list[Any]:
        if len(values) != self.rows:
            raise SafePickleError(f"a column of {len(values):,} values in a batch of {self.rows:,} rows")
        return [values[row] for row in self.keep]

    def select_size(self, batch_size: Any) -> load.Size:
        """Returns a batch size with the number of selected rows."""
        if not isinstance(batch_size, tuple | list) or list(batch_size[:1]) != [self.rows]:
            raise SafePickleError("a part of it has a different number of rows than the batch")
        return load.Size((len(self.keep), *batch_size[1:]))

    def select_dense(self, field: DenseField) -> SelectedTensor:
        if field.shape[0] != self.rows:
            raise SafePickleError(f"a tensor of {field.shape[0]:,} rows in a batch of {self.rows:,}")
        joined = self._join_rows(field.data, field.start, field.row_bytes)
        return SelectedTensor(field.dtype, (len(self.keep), *field.shape[1:]), joined)

    def _join_rows(self, data: load.Data, start: int, width: int) -> JoinedBytes:
        spans = merge_spans((start + row * width, width) for row in self.keep)
        return JoinedBytes([ByteRange(data, *span) for span in spans])


def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merges adjacent spans of (first byte, length)."""
    merged: list[tuple[int, int]] = []
    for at, length in spans:
        if merged and sum(merged[-1]) == at:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((at, length))
    return merged


SELECTORS_BY_TYPE: Mapping[type, Callable[[RowSelection, Any], Any]] = {
    load.Tensor: RowSelection.select_tensor,
    load.Nested: RowSelection.select_nested,
    load.Stack: RowSelection.select_stack,
    load.Datum: RowSelection.select_datum,
}
