"""Chosen rows of a batch as the machine built it: the same values and types, fewer of them.

Numbers are not read: what is chosen of a tensor is said by where it lies, and copied when it is written. What can't be
told apart into rows (a tensor that does not lie in one piece, a value nobody can read) raises SafePickleError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from rolloutdeck.safe_pickle.batches import (
    CONSOLIDATED_METADATA_KEYS,
    DenseField,
    TensorField,
    build_dense_field,
    build_jagged_field,
    read_consolidated_fields,
)
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import (
    Array,
    Consolidated,
    Data,
    Datum,
    Dtype,
    Nested,
    Proto,
    Size,
    Stack,
    Tensor,
    Tree,
    read_byte_range,
)

ALIGNED = 8  # bytes at which a field of a consolidated TensorDict begins


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes of `data` from `at`."""

    data: Data
    at: int
    length: int

    def pieces(self, most: int) -> Iterator[bytes]:
        for at in range(0, self.length, most):
            yield read_byte_range(self.data, self.at + at, min(most, self.length - at))


@dataclass(frozen=True, slots=True)
class JoinedBytes:
    """Bytes that lie in several places, one after the other."""

    parts: Sequence[ByteRange]

    def __len__(self) -> int:
        return sum(part.length for part in self.parts)

    def pieces(self, most: int) -> Iterator[bytes]:
        for part in self.parts:
            yield from part.pieces(most)


@dataclass(frozen=True, slots=True)
class SelectedTensor:
    """A tensor in row-major order that lies in no storage yet."""

    dtype: str
    shape: tuple[int, ...]
    data: JoinedBytes


@dataclass(frozen=True, slots=True)
class SelectedJaggedTensor:
    """A jagged tensor that lies in no storage yet: [values, offsets]."""

    values: SelectedTensor
    offsets: SelectedTensor


class RowSelection:
    """The rows `keep`, in order, of a batch of `rows` rows."""

    def __init__(self, rows: int, keep: Sequence[int]) -> None:
        self.rows = rows
        self.keep = keep

    def proto(self, batch: Proto, tensors: Any) -> Proto:
        """`tensors`: what takes the place of the first part of its state."""
        assert batch.state is not None
        _, columns, meta = batch.state
        return replace(batch, state=(tensors, {name: self.column(one) for name, one in columns.items()}, meta))

    def raw(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """verl's numpy serialisation: (batch size, device, name -> tensor or (layout, a tensor per row))."""
        size, device, fields = parts
        return self.size(size), device, {name: self._raw_field(one) for name, one in fields.items()}

    def _raw_field(self, told: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(told) == 2:
            return told[0], self.listed(told[1])
        dtype, shape, flat = told
        chosen = self.of_block(DenseField(dtype, shape, flat.data))
        return dtype, Size(chosen.shape), replace(flat, shape=(len(chosen.data),), data=chosen.data)

    def column(self, value: Any) -> Any:
        """A numpy column."""
        if not isinstance(value, Array) or not isinstance(value.dtype, Dtype) or value.shape[:1] != (self.rows,):
            raise SafePickleError("it has a column without a value per row")
        assert value.data is not None
        each = len(value.data) // max(self.rows, 1)
        if isinstance(value.data, list):
            chosen: Any = [one for row in self.keep for one in value.data[row * each : (row + 1) * each]]
        else:
            chosen = self._joined(value.data, 0, each)
        return replace(value, shape=(len(self.keep), *value.shape[1:]), data=chosen)

    def consolidated(self, batch: Consolidated) -> Consolidated:
        told = batch.metadata.get("cls_metadata")
        if batch.metadata.get("non_tensors") or set(batch.metadata) - CONSOLIDATED_METADATA_KEYS:
            raise SafePickleError("it has values among its tensors that are no tensors")
        if not isinstance(told, dict):
            raise SafePickleError("a TensorDict that does not say how many rows it has")
        leaves, parts, at = {}, [], 0
        for name, cells in read_consolidated_fields(batch):
            chosen = self.of_cells(cells)
            length = len(chosen.data)
            padding = -length % ALIGNED
            leaves[name] = ("torch." + chosen.dtype, list(chosen.shape), at, at + length + padding, padding)
            parts += [*chosen.data.parts, ByteRange(bytes(padding), 0, padding)]
            at += length + padding
        metadata = {
            **{name: one for name, one in batch.metadata.items() if name != "size"},
            "leaves": leaves,
            "cls_metadata": {**told, "batch_size": [*self.size(told.get("batch_size"))]},
        }
        return Consolidated(metadata, SelectedTensor("uint8", (at,), JoinedBytes(parts)))  # type: ignore[arg-type]

    def tree(self, batch: Tree) -> Tree:
        fields = {name: self.field(one) for name, one in batch.fields.items()}
        state = {**batch.state, "_tensordict": fields, "_batch_size": self.size(batch.batch_size)}
        return Tree(fields, state["_batch_size"], state)

    def field(self, value: Any) -> Any:
        """A field of a TensorDict."""
        choose = FIELDS.get(type(value))
        if choose is None:
            raise SafePickleError(f"it has {value if hasattr(value, 'name') else 'a field'} that has no rows")
        return choose(self, value)

    def tensor(self, value: Tensor) -> SelectedTensor:
        return self.of_block(build_dense_field(value))

    def nested(self, value: Nested) -> SelectedJaggedTensor:
        cells = build_jagged_field(value)
        if len(cells.rows) != self.rows:
            raise SafePickleError("a jagged tensor with other rows than its batch")
        values, lengths = cells.values, [cells.rows[row][1] for row in self.keep]
        width = values.row_bytes
        spans = [(values.start + at * width, length * width) for at, length in (cells.rows[row] for row in self.keep)]
        joined = JoinedBytes([ByteRange(values.data, *span) for span in merged(spans)])
        bounds = b"".join(bound.to_bytes(8, "little") for bound in accumulate(lengths, initial=0))
        return SelectedJaggedTensor(
            SelectedTensor(values.dtype, (sum(lengths), *values.shape[1:]), joined),
            SelectedTensor("int64", (len(lengths) + 1,), JoinedBytes([ByteRange(bounds, 0, len(bounds))])),
        )

    def stack(self, value: Stack) -> Stack:
        if value.state.get("stack_dim") != 0:
            raise SafePickleError("a column that is stacked along something else than its rows")
        values = self.listed(value.values)
        sizes = {name: self.size(one) for name, one in value.state.items() if name == "_batch_size" and one is not None}
        return Stack(values, {**value.state, **sizes, "tensordicts": values})

    def datum(self, value: Datum) -> Datum:
        """One value for all rows; the TensorDict beside it has as many rows as the batch."""
        beside = value.state.get("tensordict")
        if not isinstance(beside, Tree) or beside.fields:
            raise SafePickleError("a value with something beside it")
        return Datum(value.value, {**value.state, "tensordict": self.tree(beside) if beside.batch_size else beside})

    def listed(self, values: Sequence[Any]) -> list[Any]:
        if len(values) != self.rows:
            raise SafePickleError(f"a column of {len(values):,} values in a batch of {self.rows:,} rows")
        return [values[row] for row in self.keep]

    def size(self, told: Any) -> Size:
        """A batch size with the rows that are left."""
        if not isinstance(told, tuple | list) or list(told[:1]) != [self.rows]:
            raise SafePickleError("a part of it has other rows than the batch")
        return Size((len(self.keep), *told[1:]))

    def of_cells(self, cells: TensorField) -> SelectedTensor:
        if not isinstance(cells, DenseField):
            raise SafePickleError("a jagged tensor where verl writes none")
        return self.of_block(cells)

    def of_block(self, found: DenseField) -> SelectedTensor:
        if found.shape[0] != self.rows:
            raise SafePickleError(f"a tensor of {found.shape[0]:,} rows in a batch of {self.rows:,}")
        joined = self._joined(found.data, found.start, found.row_bytes)
        return SelectedTensor(found.dtype, (len(self.keep), *found.shape[1:]), joined)

    def _joined(self, data: Data, start: int, width: int) -> JoinedBytes:
        return JoinedBytes(
            [ByteRange(data, *span) for span in merged((start + row * width, width) for row in self.keep)]
        )


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first byte, length), with neighbours made one."""
    found: list[tuple[int, int]] = []
    for at, length in spans:
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + length)
        else:
            found.append((at, length))
    return found


FIELDS: Mapping[type, Callable[[RowSelection, Any], Any]] = {
    Tensor: RowSelection.tensor,
    Nested: RowSelection.nested,
    Stack: RowSelection.stack,
    Datum: RowSelection.datum,
}
