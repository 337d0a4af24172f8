"""The tensors of a batch, row by row: one seek each. numpy is imported only where an array is requested."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from rolloutdeck.safe_pickle import load
from rolloutdeck.safe_pickle.errors import SafePickleError

if TYPE_CHECKING:
    import numpy as np

FREE_JAGGED_ROWS = 4 << 20  # of all jagged tensors of a batch, because they can share their offsets
BYTES_PER_JAGGED_ROW = 8  # a larger file may have one row more for each of them
MAX_JAGGED_ROWS = 64 << 20  # whatever the size of the file
STRUCT_CODES = {
    "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's type and shape. `dtype` is torch's name. `shape` begins with the number of rows; the second size of a
    jagged field is that of its longest row."""

    dtype: str
    shape: tuple[int, ...]
    jagged: bool = False


@dataclass(frozen=True, slots=True)
class DenseField:
    """Values of one type in row-major order. `start`: position of the first in `data`, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: load.Data
    start: int = 0

    def __post_init__(self) -> None:
        load.count_elements(self.shape)
        if self.dtype not in load.DTYPE_SIZES:
            raise SafePickleError(f"a tensor of type {self.dtype:.40}")
        if not self.shape or self.start < 0 or self.start + self.row_bytes * self.shape[0] > len(self.data):
            raise SafePickleError(f"a tensor of shape {self.shape} is larger than its bytes")

    @property
    def row_bytes(self) -> int:
        return load.count_elements(self.shape[1:]) * load.DTYPE_SIZES[self.dtype]

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.dtype, self.shape)

    def read_rows_bytes(self, first: int, count: int) -> bytes:
        return load.read_byte_range(self.data, self.start + first * self.row_bytes, count * self.row_bytes)

    def get_row_shape(self, row: int) -> tuple[int, ...]:
        return self.shape[1:]

    def read_row(self, row: int) -> tuple[bytes, tuple[int, ...]]:
        """Returns the bytes and the shape of a row."""
        return self.read_rows_bytes(row, 1), self.shape[1:]

    def read_all(self) -> tuple[bytes, tuple[int, ...]]:
        return self.read_rows_bytes(0, self.shape[0]), self.shape


@dataclass(frozen=True, slots=True)
class JaggedRows:
    """Start and length of each row of a jagged field, in values. There can be millions, so a row takes 16 bytes."""

    starts: array[int]
    lengths: array[int]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> tuple[int, int]:
        return self.starts[row], self.lengths[row]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts, self.lengths, strict=True)


@dataclass(frozen=True, slots=True)
class JaggedField:
    """Rows of different lengths in one block. `rows[i]`: start and length of row i, in values."""

    values: DenseField
    rows: JaggedRows

    @property
    def dtype(self) -> str:
        return self.values.dtype

    @property
    def info(self) -> TensorInfo:
        longest = max(self.rows.lengths, default=0)
        return TensorInfo(self.dtype, (len(self.rows), longest, *self.values.shape[1:]), jagged=True)

    def get_row_shape(self, row: int) -> tuple[int, ...]:
        return self.rows[row][1], *self.values.shape[1:]

    def read_row(self, row: int) -> tuple[bytes, tuple[int, ...]]:
        return self.values.read_rows_bytes(*self.rows[row]), self.get_row_shape(row)

    def read_all(self) -> tuple[bytes, tuple[int, ...]]:
        raise ValueError("the rows differ in length: read one row")


@dataclass(frozen=True, slots=True)
class SeparateField:
    """Rows of different lengths, each in a separate block."""

    blocks: Sequence[DenseField]
    layout: str = "jagged"

    @property
    def dtype(self) -> str:
        return self.blocks[0].dtype

    @property
    def info(self) -> TensorInfo:
        longest = max(block.shape[0] for block in self.blocks)
        return TensorInfo(self.dtype, (len(self.blocks), longest, *self.blocks[0].shape[1:]), jagged=True)

    def get_row_shape(self, row: int) -> tuple[int, ...]:
        return self.blocks[row].shape

    def read_row(self, row: int) -> tuple[bytes, tuple[int, ...]]:
        return self.blocks[row].read_all()

    def read_all(self) -> tuple[bytes, tuple[int, ...]]:
        raise ValueError("the rows differ in length: read one row")


TensorField = DenseField | JaggedField | SeparateField


def decode_numbers(dtype: str, data: bytes) -> list[Any]:
    """Returns plain numbers from little-endian bytes."""
    if dtype == "bfloat16":  # the upper half of a float32
        data = b"".join(b"\0\0" + data[start : start + 2] for start in range(0, len(data), 2))
        dtype = "float32"
    return list(struct.unpack(f"<{len(data) // load.DTYPE_SIZES[dtype]}{STRUCT_CODES[dtype]}", data))


def decode_array(dtype: str, data: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Returns bytes as a numpy array. bfloat16, which numpy does not support, becomes float32."""
    import numpy as np

    if dtype == "bfloat16":
        wide = np.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(shape)
    try:
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)
    except ValueError as error:  # next to a size of 0, the other sizes can be anything
        raise SafePickleError(f"an array of shape {shape}, which numpy does not support") from error


def build_dense_field(tensor: load.Tensor) -> DenseField:
    """Returns a torch tensor as a dense field. Raises SafePickleError if it is not contiguous."""
    if not is_contiguous(tensor):
        raise SafePickleError(describe_not_contiguous(tensor))
    dtype = tensor.storage.dtype
    return DenseField(dtype, tensor.shape, tensor.storage.data, tensor.start * load.DTYPE_SIZES[dtype])


def is_contiguous(tensor: load.Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != step and 0 not in tensor.shape:
            return False
        step *= size
    return True


def describe_not_contiguous(tensor: load.Tensor) -> str:
    return f"a tensor of shape {tensor.shape} that is not contiguous"


def build_jagged_field(tensor: load.Nested) -> JaggedField:
    values = build_dense_field(tensor.values)
    bounds = _read_integers(tensor.offsets)
    lengths = [end - start for start, end in pairwise(bounds)]
    if tensor.lengths:
        lengths = _read_integers(tensor.lengths)
    if len(lengths) != len(bounds[:-1]):
        raise SafePickleError("a nested tensor with a different number of lengths and rows")
    if sum(lengths) > values.shape[0]:
        raise SafePickleError("a nested tensor whose rows overlap, or reach beyond its values")
    rows = zip(bounds[:-1], lengths, strict=True)
    if any(start < 0 or length < 0 or start + length > values.shape[0] for start, length in rows):
        raise SafePickleError("a nested tensor whose rows reach beyond its values")
    return JaggedField(values, JaggedRows(array("q", bounds[:-1]), array("q", lengths)))


def _read_integers(tensor: load.Tensor) -> list[int]:
    if len(tensor.shape) != 1 or tensor.storage.dtype not in ("int64", "int32"):
        raise SafePickleError("a nested tensor whose offsets are not a list of integers")
    return decode_numbers(tensor.storage.dtype, build_dense_field(tensor).read_all()[0])


def read_tensordict_fields(tree: load.Tree) -> Iterator[tuple[str, TensorField]]:
    """Yields the tensors of a plain TensorDict, each with its name, but those that are not contiguous."""
    rows = 0
    for name, value in tree.fields.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, load.Tensor) and is_contiguous(value):
            yield name, build_dense_field(value)
        elif isinstance(value, load.Nested):
            rows += math.prod(value.offsets.shape)
            _check_jagged_rows(rows, value.offsets.storage.data.source.size)
            yield name, build_jagged_field(value)


def _check_jagged_rows(rows: int, size: int) -> None:
    """`size`: bytes of the archive."""
    limit = min(FREE_JAGGED_ROWS + size // BYTES_PER_JAGGED_ROW, MAX_JAGGED_ROWS)
    if rows > limit:
        raise SafePickleError(f"more than {limit:,} rows of jagged tensors")


def read_consolidated_fields(batch: load.Consolidated) -> Iterator[tuple[str, DenseField]]:
    """Yields the tensors of a consolidated TensorDict: parts of one byte tensor."""
    data = build_dense_field(batch.data)
    leaves = batch.metadata.get("leaves")
    if not isinstance(leaves, dict) or len(data.shape) != 1:
        raise SafePickleError("a consolidated TensorDict without a valid list of its fields")
    for name, leaf in leaves.items():
        yield str(name), _build_consolidated_field(data, leaf)


def _build_consolidated_field(data: DenseField, leaf: Any) -> DenseField:
    """`leaf`: (dtype, shape, first byte, last byte + 1, padding) in the bytes of the TensorDict."""
    is_leaf = isinstance(leaf, tuple | list) and len(leaf) == 5 and isinstance(leaf[0], str)
    dtype, shape, start, stop, _ = cast("Sequence[Any]", leaf if is_leaf else [None] * 5)
    if not isinstance(shape, tuple | list) or type(start) is not int or type(stop) is not int:
        raise SafePickleError("a field of a TensorDict without a valid position")
    dtype = dtype.removeprefix("torch.")
    length = load.count_elements(shape) * load.DTYPE_SIZES.get(dtype, 1)
    if not 0 <= start <= stop <= data.shape[0] or length > stop - start:
        raise SafePickleError("a field of a TensorDict reaches beyond its bytes")
    return DenseField(dtype, tuple(shape), data.data, data.start + start)


def read_numpy_fields(numpy_fields: Mapping[Any, Any]) -> Iterator[tuple[str, TensorField]]:
    """Yields fields of (dtype, shape, flat array of bytes), or, if nested, of (layout, [a tensor per row])."""
    rows = NumpyRows()
    for name, field in numpy_fields.items():
        if isinstance(field, tuple) and len(field) == 2 and isinstance(field[1], list) and field[1]:
            blocks = rows.build_blocks(field[1])
            if len({(block.dtype, block.shape[1:]) for block in blocks}) > 1:
                raise SafePickleError("a nested tensor whose rows have different types")
            yield str(name), SeparateField(blocks, str(field[0]))
        else:
            yield str(name), _build_numpy_field(field)


class NumpyRows:
    """Builds the rows of nested fields. verl writes each row; a row that a file has once and names often is limited."""

    def __init__(self) -> None:
        self.blocks: dict[int, DenseField] = {}  # id of the row -> its block
        self.repeated = 0

    def build_blocks(self, rows: list[Any]) -> list[DenseField]:
        """Raises SafePickleError if a row is invalid, or too many are repeated."""
        new = {id(row): row for row in rows if id(row) not in self.blocks}
        self.repeated += len(rows) - len(new)
        _check_jagged_rows(self.repeated, 0)
        self.blocks |= {key: _build_numpy_field(row) for key, row in new.items()}
        return [self.blocks[id(row)] for row in rows]


def _build_numpy_field(field: Any) -> DenseField:
    is_triple = isinstance(field, tuple) and len(field) == 3
    dtype, shape, values = cast("Sequence[Any]", field if is_triple else [None] * 3)
    is_array = isinstance(values, load.Array) and isinstance(values.dtype, load.Dtype)
    if not is_array or not isinstance(dtype, str) or not isinstance(shape, tuple):
        raise SafePickleError("a tensor that verl's numpy serialisation does not write")
    if values.dtype.code != "u1" or values.data is None or isinstance(values.data, list):
        raise SafePickleError("a tensor without its bytes")
    return DenseField(dtype, shape, values.data)
