"""Writes what the machine built as a pickle of protocol 4: the same values and types, other opcodes.

The bytes depend on nothing but the values. Long bytes are copied from the file they lie in, a block at a time. What is
shared stays shared, so that a value remembered a thousand times is not written a thousand times.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load import Array, Dtype, Name, Piece, Proto, Scalar, Size, Unreadable
from rolloutdeck.safe_pickle.rewrite.row_selection import JoinedBytes

COPY_BLOCK_BYTES = 1 << 20
MAX_DEPTH = 100
NDARRAY, DTYPE, SIZE = Name("numpy", "ndarray"), Name("numpy", "dtype"), Name("torch", "Size")
ORDERED = Name("collections", "OrderedDict")


def write_pickle(value: Any, file: BinaryIO) -> None:
    """Raises SafePickleError for a value that we could not read: it can't be written either."""
    file.write(b"\x80\x04")
    PickleWriter(file).value(value)
    file.write(b".")


class PickleWriter:
    table: Mapping[type, Callable[[Any, Any], None]]  # what writes a value of a type

    def __init__(self, file: BinaryIO) -> None:
        self.put = file.write
        self.memo: dict[Any, int] = {}  # texts and names by value, everything else by identity
        self.alive: list[Any] = []  # so that no identity is used twice
        self.depth = 0

    def value(self, value: Any) -> None:
        write = self.table.get(type(value))
        if write is None:
            what = str(value) if isinstance(value, Unreadable) else f"a {type(value).__name__.lower()}"
            raise SafePickleError(f"it holds {what}, which can't be written again")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SafePickleError(f"values nested deeper than {MAX_DEPTH} levels")
        write(self, value)
        self.depth -= 1

    def known(self, key: Any) -> bool:
        """Writes what was written before as a reference."""
        at = self.memo.get(key)
        if at is not None:
            self.put(b"h" + bytes([at]) if at < 256 else b"j" + struct.pack("<I", at))
        return at is not None

    def remember(self, key: Any, value: Any) -> None:
        self.memo[key] = len(self.memo)
        self.alive.append(value)
        self.put(b"\x94")

    def none(self, value: None) -> None:
        self.put(b"N")

    def truth(self, value: Any) -> None:
        self.put(b"\x88" if value else b"\x89")

    def integer(self, value: Any) -> None:
        if 0 <= value < 1 << 8:
            self.put(b"K" + bytes([value]))
        elif 0 <= value < 1 << 16:
            self.put(b"M" + struct.pack("<H", value))
        elif -(1 << 31) <= value < 1 << 31:
            self.put(b"J" + struct.pack("<i", value))
        else:
            self._long(value)

    def _long(self, value: Any) -> None:
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        self.put((b"\x8a" + bytes([len(data)]) if len(data) < 256 else b"\x8b" + struct.pack("<i", len(data))) + data)

    def real(self, value: Any) -> None:
        self.put(b"G" + struct.pack(">d", value))

    def text(self, value: str) -> None:
        if self.known(value):
            return
        data = value.encode("utf-8", "surrogatepass")
        self.put(b"\x8c" + bytes([len(data)]) if len(data) < 256 else b"X" + struct.pack("<I", len(data)))
        self.put(data)
        self.remember(value, value)

    def data(self, value: Any) -> None:
        """Bytes in memory or in a file."""
        if self.known(id(value)):
            return
        length = len(value)
        if length < 256:
            self.put(b"C" + struct.pack("<B", length))
        else:
            self.put(b"B" + struct.pack("<I", length) if length < 1 << 32 else b"\x8e" + struct.pack("<Q", length))
        self._copy(value, length)
        self.remember(id(value), value)

    def _copy(self, value: Any, length: int) -> None:
        if isinstance(value, JoinedBytes):
            for piece in value.pieces(COPY_BLOCK_BYTES):
                self.put(piece)
            return
        if not isinstance(value, Piece):
            self.put(value)
            return
        for at in range(0, length, COPY_BLOCK_BYTES):
            self.put(value.read(at, min(COPY_BLOCK_BYTES, length - at)))

    def tuple_of(self, value: Any) -> None:
        if not value:
            self.put(b")")
            return
        if self.known(id(value)):
            return
        if len(value) > 3:
            self.put(b"(")
        for member in value:
            self.value(member)
        self.put(b"t" if len(value) > 3 else b"\x84\x85\x86\x87"[len(value) : len(value) + 1])
        self.remember(id(value), value)

    def list_of(self, value: Any) -> None:
        if self.known(id(value)):
            return
        self.put(b"]")
        self.remember(id(value), value)
        self.put(b"(")
        for member in value:
            self.value(member)
        self.put(b"e")

    def dict_of(self, value: Any) -> None:
        if self.known(id(value)):
            return
        self.put(b"}")
        self.remember(id(value), value)
        self._items(value)

    def ordered(self, value: Any) -> None:
        if not self.known(id(value)):
            self.call(ORDERED, (), value)
            self._items(value)

    def _items(self, value: Any) -> None:
        self.put(b"(")
        for key, member in value.items():
            self.value(key)
            self.value(member)
        self.put(b"u")

    def set_of(self, value: Any) -> None:
        """In an order that is the same in every process."""
        if self.known(id(value)):
            return
        self.put(b"\x8f")
        self.remember(id(value), value)
        self.put(b"(")
        for member in sorted(value, key=repr):
            self.value(member)
        self.put(b"\x90")

    def name(self, value: Name) -> None:
        if self.known(value):
            return
        self.text(value.module)
        self.text(value.name)
        self.put(b"\x93")
        self.remember(value, value)

    def call(self, name: Name, args: Any, value: Any) -> None:
        self.name(name)
        self.value(args)
        self.put(b"R")
        self.remember(id(value), value)

    def state(self, state: Any) -> None:
        self.value(state)
        self.put(b"b")

    def dtype(self, value: Dtype) -> None:
        if not self.known(id(value)):
            self.call(DTYPE, (value.code, False, True), value)
            self.state(value.state)

    def array(self, value: Array) -> None:
        if not self.known(id(value)):
            self.call(value.name, (NDARRAY, (0,), b"b"), value)
            self.state((1, value.shape, value.dtype, False, value.data))

    def scalar(self, value: Scalar) -> None:
        if not self.known(id(value)):
            self.call(value.name, (value.dtype, value.data), value)

    def size(self, value: Size) -> None:
        if not self.known(id(value)):
            self.call(SIZE, (tuple(value),), value)

    def proto(self, value: Proto) -> None:
        self.name(value.name)
        self.put(b")\x81")
        self.remember(id(value), value)
        self.state(value.state)


WRITERS_BY_TYPE: dict[type, Callable[[Any, Any], None]] = {
    type(None): PickleWriter.none,
    bool: PickleWriter.truth,
    int: PickleWriter.integer,
    float: PickleWriter.real,
    str: PickleWriter.text,
    bytes: PickleWriter.data,
    Piece: PickleWriter.data,
    JoinedBytes: PickleWriter.data,
    tuple: PickleWriter.tuple_of,
    list: PickleWriter.list_of,
    dict: PickleWriter.dict_of,
    set: PickleWriter.set_of,
    OrderedDict: PickleWriter.ordered,
    Name: PickleWriter.name,
    Dtype: PickleWriter.dtype,
    Array: PickleWriter.array,
    Scalar: PickleWriter.scalar,
    Size: PickleWriter.size,
    Proto: PickleWriter.proto,
}
PickleWriter.table = WRITERS_BY_TYPE
