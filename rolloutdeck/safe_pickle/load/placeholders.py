"""The placeholders that the interpreter builds instead of the objects that a pickle names. They run no code of those.

Arrays and tensors have a type, a shape and a position in the file. Their numbers are read only when a row is requested.
A global that is not on the list becomes an `Unreadable` with its name. A known global with unexpected arguments raises
`SafePickleError`, because no dump has that. Formats: numpy's array reduction, torch's `_rebuild_tensor_v2` over typed
storages, tensordict's consolidated and plain states (`_reductions.py` of 0.10). Some messages show the lower-case name
of a class in this module, so do not rename the classes. The interpreter calls `set_state` for the opcode BUILD.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan

MAX_DIMENSION = 1 << 40
MAX_DIMENSIONS = 32


@dataclass(frozen=True, slots=True)
class Name:
    """A global that the pickle names. It is not imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Unreadable:
    """Replaces a value that can't be read. `name` is the global that would have built it, or a description."""

    name: str

    def __str__(self) -> str:
        return f"unreadable: {self.name}"

    def set_state(self, state: object) -> None:
        """Ignores the state: an unreadable value remains unreadable."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are stored in a file."""

    source: ByteSource
    span: ByteSpan

    def __len__(self) -> int:
        return self.span.length

    def read(self, at: int, length: int) -> bytes:
        check_byte_range(self, at, length)
        return self.source.read(self.span.start + at, length)

    def read_into(self, at: int, buffer: memoryview) -> None:
        check_byte_range(self, at, len(buffer))
        self.source.read_into(self.span.start + at, buffer)


Data = bytes | Piece


def check_byte_range(data: Data, at: int, length: int) -> None:
    if at < 0 or length < 0 or at + length > len(data):
        raise SafePickleError(f"{length:,} bytes at {at:,} of a part of {len(data):,}")


def read_byte_range(data: Data, at: int, length: int) -> bytes:
    """Returns a range of bytes in memory or in a file. Raises SafePickleError if they are too short."""
    if isinstance(data, Piece):
        return data.read(at, length)
    check_byte_range(data, at, length)
    return data[at : at + length]


def read_bytes_into(buffer: memoryview, data: Data, at: int = 0) -> None:
    """Fills a buffer with bytes in memory or in a file, from `at`. Raises SafePickleError if they are too short."""
    if isinstance(data, Piece):
        data.read_into(at, buffer)
    else:
        buffer[:] = read_byte_range(data, at, len(buffer))


def count_elements(shape: Sequence[int]) -> int:
    """Returns the number of values in a shape. Raises SafePickleError if the shape is invalid."""
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and 0 <= size <= MAX_DIMENSION for size in shape):
        raise SafePickleError("an array with an invalid shape")
    return math.prod(shape)


class Size(tuple[int, ...]):
    """A torch.Size."""


@dataclass(slots=True)
class Dtype:
    """A numpy dtype. `code` is like `i8` or `U5`. `state` comes from BUILD: version, byte order, ..., item size."""

    code: str
    state: tuple[Any, ...] = ()

    @property
    def kind(self) -> str:
        return self.code[0]

    @property
    def size(self) -> int:
        """Bytes per value."""
        return int(self.code[1:]) * (4 if self.kind == "U" else 1)

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 8 or state[1] not in ("<", "|", "="):
            raise SafePickleError(f"a numpy dtype {self.code} with a state that numpy does not write")
        self.state = state


@dataclass(slots=True)
class Array:
    """A numpy array. `data`: bytes in memory, bytes in the file, or the list of an object array. None before BUILD."""

    name: Name
    dtype: Dtype | Unreadable | None = None
    shape: tuple[int, ...] = ()
    data: Data | list[Any] | None = None

    def set_state(self, state: object) -> None:
        """`state`: (1, shape, dtype, Fortran order, data), as ndarray.__reduce__ returns it. Otherwise inert."""
        try:
            self._set_checked_state(state)
        except SafePickleError as error:
            self.shape, self.dtype, self.data = (), Unreadable(str(error)), None

    def _set_checked_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[1], tuple):
            raise SafePickleError("a numpy array with a state that numpy does not write")
        _, self.shape, self.dtype, fortran, self.data = state
        count = count_elements(self.shape)
        if fortran and len(self.shape) > 1:
            self.dtype = Unreadable("numpy array in Fortran order")
        elif isinstance(self.dtype, Dtype):
            self._check(count)
        elif not isinstance(self.dtype, Unreadable):
            raise SafePickleError("a numpy array without a dtype")

    def _check(self, count: int) -> None:
        assert isinstance(self.dtype, Dtype)
        objects = self.dtype.kind == "O"
        if not isinstance(self.data, list if objects else bytes | Piece):
            raise SafePickleError(f"a numpy array of {self.dtype.code} without its values")
        length, actual = count if objects else count * self.dtype.size, len(self.data)
        if actual != length:
            message = f"a numpy array of shape {self.shape} ({self.dtype.code}) has {actual:,}, not {length:,}"
            raise SafePickleError(message)


@dataclass(slots=True)
class Scalar:
    """A numpy scalar."""

    name: Name
    dtype: Dtype
    data: bytes


@dataclass(frozen=True, slots=True)
class Storage:
    """A torch storage: numbers of one type in a ZIP member. `dtype` is torch's name, like `int64`."""

    dtype: str
    data: Piece


@dataclass(frozen=True, slots=True)
class Tensor:
    """A torch tensor. `start` counts values, not bytes."""

    storage: Storage
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nested:
    """A jagged tensor: row i is values[offsets[i] : offsets[i + 1]], or lengths[i] values from offsets[i]."""

    values: Tensor
    offsets: Tensor
    lengths: Tensor | None


@dataclass(frozen=True, slots=True)
class Consolidated:
    """A TensorDict in one byte tensor. `metadata["leaves"]`: name -> (dtype, shape, start, stop, padding)."""

    metadata: Mapping[str, Any]
    data: Tensor


@dataclass(frozen=True, slots=True)
class Tree:
    """A TensorDict of separate tensors. `state`: all its attributes, as passed to `_make_td`."""

    fields: Mapping[str, Any]
    batch_size: tuple[int, ...]
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Stack:
    """A NonTensorStack: one value per row. `state`: all its attributes."""

    values: list[Any] = field(default_factory=list)
    state: Mapping[str, Any] = field(default_factory=dict)

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("tensordicts"), list):
            raise SafePickleError("a NonTensorStack without its values")
        self.values, self.state = state["tensordicts"], state


@dataclass(slots=True)
class Datum:
    """A NonTensorData: one value. `state`: all its attributes."""

    value: Any = None
    state: Mapping[str, Any] = field(default_factory=dict)

    def set_state(self, state: object) -> None:
        inner = state.get("non_tensordict") if isinstance(state, dict) else None
        if not isinstance(state, dict) or not isinstance(inner, dict) or "data" not in inner:
            raise SafePickleError("a NonTensorData without its value")
        self.value, self.state = inner["data"], state


@dataclass(slots=True)
class Proto:
    """verl's DataProto: (tensors as bytes or parts, non-tensor columns, meta_info)."""

    name: Name
    state: tuple[Any, ...] | None = None

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 3:
            raise SafePickleError("a DataProto with a state that verl does not write")
        self.state = state


@dataclass(slots=True)
class Buffer:
    """An `_io.BytesIO`: its bytes."""

    data: Data = b""

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 3 or not isinstance(state[0], bytes | Piece):
            raise SafePickleError("a BytesIO with a state that Python does not write")
        self.data = state[0]


@dataclass(slots=True)
class Rollout:
    """ROLL's DataProto: (tensors as bytes, non-tensor columns, an external batch, meta_info)."""

    name: Name
    state: tuple[Any, ...] | None = None

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 4:
            raise SafePickleError("a DataProto with a state that ROLL does not write")
        self.state = state


class TensorBatch(dict[Any, Any]):
    """SkyRL's TensorBatch. `state`: its tensors as bytes, and its metadata. Older pickles also fill the dict."""

    state: Mapping[str, Any] | None = None

    def set_state(self, state: object) -> None:
        if not isinstance(state, dict):
            raise SafePickleError("a TensorBatch with a state that SkyRL does not write")
        self.state = state


DTYPE_CODE = re.compile(r"b1|[iu][1248]|f[248]|[US]\d{1,9}|O8?")
