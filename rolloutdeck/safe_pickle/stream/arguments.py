"""Readers for the argument of each pickle opcode: the table of `pickletools`, read in blocks and by position."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream.source import ByteSource

MAX_INLINE_BYTES = 4096  # bytes; a longer bytes argument is not read
BLOCK_BYTES = 1 << 16  # bytes read at once
MAX_LINE_BYTES = 1024  # of a decimal number or a name in text form
MAX_INTEGER_BYTES = 1024


@dataclass(frozen=True, slots=True)
class PickleLimits:
    """How much of a pickle is read at most. A step of 4,096 rows has about 5 million opcodes."""

    opcodes: int = 40_000_000
    memo: int = 16_000_000
    text: int = 64 << 20  # bytes of one string
    marks: int = 10_000  # open at once
    protocol: int = 5


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """The position of bytes that were not read, in the source that was scanned."""

    start: int
    length: int


OpcodeArgument = int | float | str | bytes | ByteSpan | None


class SourceReader:
    """Reads a source forwards in blocks. `at` is the position of the next byte."""

    __slots__ = ("_block", "_block_start", "at", "source")

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.at = 0
        self._block = b""
        self._block_start = 0

    def read_bytes(self, length: int) -> bytes:
        begin = self.at - self._block_start
        part = self._block[begin : begin + length]
        if len(part) != length:
            part = self._refill(length)[:length]
        self.at += length
        return part

    def read_byte(self) -> int:
        begin = self.at - self._block_start
        if begin >= len(self._block):
            begin = 0
            if self.at >= self.source.size:
                raise SafePickleError(f"it ends after {self.at:,} bytes without STOP: it is empty or was cut short")
            self._refill(1)
        self.at += 1
        return self._block[begin]

    def read_unsigned(self, width: int) -> int:
        begin = self.at - self._block_start
        part = self._block[begin : begin + width]
        if len(part) != width:
            return int.from_bytes(self.read_bytes(width), "little")
        self.at += width
        return int.from_bytes(part, "little")

    def _refill(self, length: int) -> bytes:
        self._block_start = self.at
        remaining = self.source.size - self.at
        self._block = self.source.read(
            self.at, length if length > remaining else max(length, min(BLOCK_BYTES, remaining))
        )
        return self._block

    def read_line(self, limit: int) -> bytes:
        """Returns the bytes up to the next newline, without it."""
        parts: list[bytes] = []
        length = 0
        while True:
            if self.at >= self.source.size or length > limit:
                raise SafePickleError(
                    "it ends inside a line" if length <= limit else f"a line of more than {limit:,} bytes"
                )
            begin = self.at - self._block_start
            block = self._block if begin < len(self._block) else self._refill(1)
            begin = self.at - self._block_start
            end = block.find(b"\n", begin)
            parts.append(block[begin : len(block) if end < 0 else end])
            length += len(parts[-1])
            self.at = self._block_start + (len(block) if end < 0 else end + 1)
            if end >= 0:
                return b"".join(parts)

    def skip(self, length: int) -> ByteSpan:
        span = ByteSpan(self.at, length)
        if self.at + length > self.source.size:
            raise SafePickleError(f"an argument of {length:,} bytes at {self.at:,} reaches beyond the end")
        self.at += length
        return span


ArgumentReader = Callable[[SourceReader, PickleLimits], OpcodeArgument]


def read_no_argument(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    return None


def _build_number_reader(struct_format: str) -> ArgumentReader:
    number_struct = struct.Struct(struct_format)

    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        value: int | float = number_struct.unpack(reader.read_bytes(number_struct.size))[0]
        return value

    return read


def _read_length(reader: SourceReader, size: int) -> int:
    return int.from_bytes(reader.read_bytes(size), "little")


def _build_bytes_reader(size: int) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _read_length(reader, size)
        return reader.read_bytes(length) if length <= MAX_INLINE_BYTES else reader.skip(length)

    return read


def _build_text_reader(size: int, encoding: str = "utf-8", errors: str = "surrogatepass") -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _read_length(reader, size)
        if length > limits.text:
            raise SafePickleError(f"a string of {length:,} bytes; at most {limits.text:,} are read")
        return _decode(reader.read_bytes(length), encoding, errors)

    return read


def _decode(data: bytes, encoding: str, errors: str) -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise SafePickleError(f"a string is not {encoding}") from error


def _build_integer_reader(size: int) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _read_length(reader, size)
        if length > MAX_INTEGER_BYTES:
            raise SafePickleError(f"an integer of {length:,} bytes")
        return int.from_bytes(reader.read_bytes(length), "little", signed=True)

    return read


def _build_names_reader(count: int) -> ArgumentReader:
    """For the names in GLOBAL and INST: `module name`."""

    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        return " ".join(_decode(reader.read_line(MAX_LINE_BYTES), "utf-8", "strict") for _ in range(count))

    return read


def _read_raw_text(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    return _decode(reader.read_line(limits.text), "raw-unicode-escape", "strict")


def _read_quoted(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    """Returns a protocol 0 string as it is written, in quotes: no known file uses one."""
    return _decode(reader.read_line(limits.text), "latin-1", "strict")


def _read_decimal(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    line = reader.read_line(MAX_LINE_BYTES).strip()
    try:
        return int(line.removesuffix(b"L"))
    except ValueError as error:
        raise SafePickleError("an invalid number") from error


def _read_decimal_float(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    try:
        return float(reader.read_line(MAX_LINE_BYTES))
    except ValueError as error:
        raise SafePickleError("an invalid number") from error


_TABLE: list[tuple[bytes, str, ArgumentReader]] = [
    (b"(", "MARK", read_no_argument),
    (b".", "STOP", read_no_argument),
    (b"0", "POP", read_no_argument),
    (b"1", "POP_MARK", read_no_argument),
    (b"2", "DUP", read_no_argument),
    (b"F", "FLOAT", _read_decimal_float),
    (b"I", "INT", _read_decimal),
    (b"J", "BININT", _build_number_reader("<i")),
    (b"K", "BININT1", read_no_argument),
    (b"L", "LONG", _read_decimal),
    (b"M", "BININT2", read_no_argument),
    (b"N", "NONE", read_no_argument),
    (b"P", "PERSID", _build_names_reader(1)),
    (b"Q", "BINPERSID", read_no_argument),
    (b"R", "REDUCE", read_no_argument),
    (b"S", "STRING", _read_quoted),
    (b"T", "BINSTRING", _build_bytes_reader(4)),
    (b"U", "SHORT_BINSTRING", _build_bytes_reader(1)),
    (b"V", "UNICODE", _read_raw_text),
    (b"X", "BINUNICODE", _build_text_reader(4)),
    (b"a", "APPEND", read_no_argument),
    (b"b", "BUILD", read_no_argument),
    (b"c", "GLOBAL", _build_names_reader(2)),
    (b"d", "DICT", read_no_argument),
    (b"}", "EMPTY_DICT", read_no_argument),
    (b"e", "APPENDS", read_no_argument),
    (b"g", "GET", _read_decimal),
    (b"h", "BINGET", read_no_argument),
    (b"i", "INST", _build_names_reader(2)),
    (b"j", "LONG_BINGET", read_no_argument),
    (b"l", "LIST", read_no_argument),
    (b"]", "EMPTY_LIST", read_no_argument),
    (b"o", "OBJ", read_no_argument),
    (b"p", "PUT", _read_decimal),
    (b"q", "BINPUT", read_no_argument),
    (b"r", "LONG_BINPUT", read_no_argument),
    (b"s", "SETITEM", read_no_argument),
    (b"t", "TUPLE", read_no_argument),
    (b")", "EMPTY_TUPLE", read_no_argument),
    (b"u", "SETITEMS", read_no_argument),
    (b"G", "BINFLOAT", _build_number_reader(">d")),
    (b"\x80", "PROTO", read_no_argument),
    (b"\x81", "NEWOBJ", read_no_argument),
    (b"\x82", "EXT1", read_no_argument),
    (b"\x83", "EXT2", read_no_argument),
    (b"\x84", "EXT4", _build_number_reader("<i")),
    (b"\x85", "TUPLE1", read_no_argument),
    (b"\x86", "TUPLE2", read_no_argument),
    (b"\x87", "TUPLE3", read_no_argument),
    (b"\x88", "NEWTRUE", read_no_argument),
    (b"\x89", "NEWFALSE", read_no_argument),
    (b"\x8a", "LONG1", _build_integer_reader(1)),
    (b"\x8b", "LONG4", _build_integer_reader(4)),
    (b"B", "BINBYTES", _build_bytes_reader(4)),
    (b"C", "SHORT_BINBYTES", _build_bytes_reader(1)),
    (b"\x8c", "SHORT_BINUNICODE", _build_text_reader(1)),
    (b"\x8d", "BINUNICODE8", _build_text_reader(8)),
    (b"\x8e", "BINBYTES8", _build_bytes_reader(8)),
    (b"\x8f", "EMPTY_SET", read_no_argument),
    (b"\x90", "ADDITEMS", read_no_argument),
    (b"\x91", "FROZENSET", read_no_argument),
    (b"\x92", "NEWOBJ_EX", read_no_argument),
    (b"\x93", "STACK_GLOBAL", read_no_argument),
    (b"\x94", "MEMOIZE", read_no_argument),
    (b"\x95", "FRAME", read_no_argument),
    (b"\x96", "BYTEARRAY8", _build_bytes_reader(8)),
    (b"\x97", "NEXT_BUFFER", read_no_argument),
    (b"\x98", "READONLY_BUFFER", read_no_argument),
]
OPCODE_READERS: dict[bytes, tuple[str, ArgumentReader]] = {code: (name, read) for code, name, read in _TABLE}
