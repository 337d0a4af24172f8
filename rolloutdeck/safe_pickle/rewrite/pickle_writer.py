"""Writes what the interpreter built as a pickle: the same values and types, other opcodes.

The bytes depend only on the values. Long bytes are copied from their file in blocks. A shared value is written once and
remains shared.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Array, Datum, Dtype, Name, Piece, Proto, Scalar, Size, Stack, Unreadable
from rolloutdeck.safe_pickle.rewrite.row_selection import ByteRange, JoinedBytes

COPY_BLOCK_BYTES = 1 << 20
MAX_DEPTH = 100
NDARRAY, DTYPE, SIZE = Name("numpy", "ndarray"), Name("numpy", "dtype"), Name("torch", "Size")
ORDERED_DICT = Name("collections", "OrderedDict")
TENSORDICT_CLASSES: dict[type, Name] = {
    Stack: Name("tensordict.tensorclass", "NonTensorStack"),
    Datum: Name("tensordict.tensorclass", "NonTensorData"),
}


def write_pickle(value: Any, file: BinaryIO) -> None:
    """Writes a value to `file`. Raises SafePickleError if it contains a value that could not be read."""
    PickleWriter(file.write).write_pickle(value)


class PickleWriter:
    """Writes a pickle with `put`. `writers_by_type`: the method that writes a value of a type."""

    protocol = 4
    writers_by_type: Mapping[type, Callable[[Any, Any], None]]

    def __init__(self, put: Callable[[bytes], object]) -> None:
        self.put = put
        self.memo: dict[Any, int] = {}  # texts and names by value, everything else by id
        self.references: list[Any] = []  # so that no id is used again
        self.depth = 0

    def write_pickle(self, value: Any) -> None:
        self.put(bytes((0x80, self.protocol)))
        self.write_value(value)
        self.put(b".")

    def write_value(self, value: Any) -> None:
        """Writes a value, or a reference to it if it was written before."""
        kind = type(value)
        if write_scalar := SCALAR_WRITERS.get(kind):
            write_scalar(self, value)
            return
        write = self.writers_by_type.get(kind)
        if write is None:
            description = str(value) if isinstance(value, Unreadable) else f"a {kind.__name__.lower()}"
            raise SafePickleError(f"it contains {description}, which can't be written again")
        at = self.memo.get(get_memo_key(value))
        if at is not None:
            self.put(b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at))
            return
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SafePickleError(f"values nested deeper than {MAX_DEPTH} levels")
        write(self, value)
        self.depth -= 1

    def memoize(self, value: Any) -> None:
        at = self.memo[get_memo_key(value)] = len(self.memo)
        self.references.append(value)
        if self.protocol >= 4:
            self.put(b"\x94")
        else:
            self.put(b"q" + bytes([at]) if at < 256 else b"r" + struct.pack("<I", at))

    def write_constant(self, value: bool | None) -> None:
        self.put(b"N" if value is None else b"\x88" if value else b"\x89")

    def write_int(self, value: Any) -> None:
        if 0 <= value < 1 << 8:
            self.put(b"K" + bytes([value]))
        elif 0 <= value < 1 << 16:
            self.put(b"M" + struct.pack("<H", value))
        elif -(1 << 31) <= value < 1 << 31:
            self.put(b"J" + struct.pack("<i", value))
        else:
            data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            length = b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data))
            self.put(length + data)

    def write_float(self, value: Any) -> None:
        self.put(b"G" + struct.pack(">d", value))

    def write_text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        is_short = len(data) < 256 and self.protocol >= 4
        self.put(b"\x8c" + bytes([len(data)]) if is_short else b"X" + struct.pack("<I", len(data)))
        self.put(data)
        self.memoize(value)

    def write_bytes(self, value: Any) -> None:
        """Writes bytes in memory or in a file."""
        length = len(value)
        if length < 256:
            self.put(b"C" + struct.pack("<B", length))
        else:
            self.put(b"B" + struct.pack("<I", length) if length < 1 << 32 else b"\x8e" + struct.pack("<Q", length))
        source = value if isinstance(value, JoinedBytes) else ByteRange(value, 0, length)
        for block in source.pieces(COPY_BLOCK_BYTES):
            self.put(block)
        self.memoize(value)

    def write_tuple(self, value: Any) -> None:
        if not value:
            self.put(b")")
            return
        if len(value) > 3:
            self.put(b"(")
        for member in value:
            self.write_value(member)
        self.put(b"t" if len(value) > 3 else b"\x84\x85\x86\x87"[len(value) : len(value) + 1])
        self.memoize(value)

    def write_list(self, value: Any) -> None:
        self.put(b"]")
        self.memoize(value)
        self._write_members(value, b"e")

    def write_set(self, value: Any) -> None:
        """Writes a set, in an order that is the same in every process."""
        self.put(b"\x8f")
        self.memoize(value)
        self._write_members(sorted(value, key=repr), b"\x90")

    def write_dict(self, value: Any) -> None:
        self.put(b"}")
        self.memoize(value)
        self._write_members(chain.from_iterable(value.items()), b"u")

    def write_ordered_dict(self, value: Any) -> None:
        self.write_call(ORDERED_DICT, (), value)
        self._write_members(chain.from_iterable(value.items()), b"u")

    def _write_members(self, members: Iterable[Any], end: bytes) -> None:
        self.put(b"(")
        for member in members:
            self.write_value(member)
        self.put(end)

    def write_name(self, value: Name) -> None:
        self.write_value(value.module)
        self.write_value(value.name)
        self.put(b"\x93")
        self.memoize(value)

    def write_call(self, name: Name, args: Any, value: Any) -> None:
        """Writes `value` as the result of a call."""
        self.write_value(name)
        self.write_value(args)
        self.put(b"R")
        self.memoize(value)

    def write_object(self, value: Proto | Stack | Datum) -> None:
        """Writes an object that is created without arguments and then receives its state."""
        self.write_value(value.name if isinstance(value, Proto) else TENSORDICT_CLASSES[type(value)])
        self.put(b")\x81")
        self.memoize(value)
        self.write_state(value.state)

    def write_state(self, state: Any) -> None:
        self.write_value(state)
        self.put(b"b")

    def write_dtype(self, value: Dtype) -> None:
        self.write_call(DTYPE, (value.code, False, True), value)
        self.write_state(value.state)

    def write_array(self, value: Array) -> None:
        self.write_call(value.name, (NDARRAY, (0,), b"b"), value)
        self.write_state((1, value.shape, value.dtype, False, value.data))

    def write_scalar(self, value: Scalar) -> None:
        self.write_call(value.name, (value.dtype, value.data), value)

    def write_size(self, value: Size) -> None:
        self.write_call(SIZE, (tuple(value),), value)


def get_memo_key(value: Any) -> Any:
    return value if isinstance(value, (str, Name)) else id(value)


SCALAR_WRITERS: dict[type, Callable[[PickleWriter, Any], None]] = {
    type(None): PickleWriter.write_constant,
    bool: PickleWriter.write_constant,
    int: PickleWriter.write_int,
    float: PickleWriter.write_float,
}
WRITERS_BY_TYPE: dict[type, Callable[[Any, Any], None]] = {
    str: PickleWriter.write_text,
    bytes: PickleWriter.write_bytes,
    Piece: PickleWriter.write_bytes,
    JoinedBytes: PickleWriter.write_bytes,
    tuple: PickleWriter.write_tuple,
    list: PickleWriter.write_list,
    dict: PickleWriter.write_dict,
    set: PickleWriter.write_set,
    OrderedDict: PickleWriter.write_ordered_dict,
    Name: PickleWriter.write_name,
    Dtype: PickleWriter.write_dtype,
    Array: PickleWriter.write_array,
    Scalar: PickleWriter.write_scalar,
    Size: PickleWriter.write_size,
    Proto: PickleWriter.write_object,
}
PickleWriter.writers_by_type = WRITERS_BY_TYPE
