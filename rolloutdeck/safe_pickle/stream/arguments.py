"""How the argument of each opcode is read, and from where: `pickletools`' table, in blocks and by position."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream.source import ByteSource

MAX_INLINE_BYTES = 4096  # bytes; a longer bytes argument stays in the file
BLOCK = 1 << 16  # bytes read at once
NUMBER_LINE = 1024  # bytes of a decimal number, digits and all
LONG_BYTES = 1024


@dataclass(frozen=True, slots=True)
class PickleLimits:
    """How much of a pickle is looked at. A step of 4,096 rows has about 5 million opcodes."""

    opcodes: int = 40_000_000
    memo: int = 16_000_000
    text: int = 64 << 20  # bytes of one string
    marks: int = 10_000  # open at once
    protocol: int = 5


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """Bytes that were not read: where they lie in the source that was scanned."""

    start: int
    length: int


OpcodeArgument = int | float | str | bytes | ByteSpan | None


class SourceReader:
    """Reads a source forwards in blocks; `at` is the position of the next byte."""

    __slots__ = ("_block", "_first", "at", "source")

    def __init__(self, source: ByteSource) -> None:
        self.source = source
        self.at = 0
        self._block = b""
        self._first = 0

    def take(self, length: int) -> bytes:
        begin = self.at - self._first
        part = self._block[begin : begin + length]
        if len(part) != length:
            part = self._refill(length)[:length]
        self.at += length
        return part

    def byte(self) -> int:
        begin = self.at - self._first
        if begin >= len(self._block):
            begin = 0
            if self.at >= self.source.size:
                raise SafePickleError(f"it ends after {self.at:,} bytes without STOP: it is empty or was cut short")
            self._refill(1)
        self.at += 1
        return self._block[begin]

    def unsigned(self, width: int) -> int:
        begin = self.at - self._first
        part = self._block[begin : begin + width]
        if len(part) != width:
            return int.from_bytes(self.take(width), "little")
        self.at += width
        return int.from_bytes(part, "little")

    def _refill(self, length: int) -> bytes:
        self._first = self.at
        left = self.source.size - self.at
        self._block = self.source.read(self.at, length if length > left else max(length, min(BLOCK, left)))
        return self._block

    def line(self, limit: int) -> bytes:
        """Up to the next newline, without it."""
        parts: list[bytes] = []
        length = 0
        while True:
            if self.at >= self.source.size or length > limit:
                raise SafePickleError(
                    "it ends inside a line" if length <= limit else f"a line of more than {limit:,} bytes"
                )
            begin = self.at - self._first
            block = self._block if begin < len(self._block) else self._refill(1)
            begin = self.at - self._first
            end = block.find(b"\n", begin)
            parts.append(block[begin : len(block) if end < 0 else end])
            length += len(parts[-1])
            self.at = self._first + (len(block) if end < 0 else end + 1)
            if end >= 0:
                return b"".join(parts)

    def skip(self, length: int) -> ByteSpan:
        span = ByteSpan(self.at, length)
        if self.at + length > self.source.size:
            raise SafePickleError(f"an argument of {length:,} bytes at {self.at:,} reaches beyond the end")
        self.at += length
        return span


ArgumentReader = Callable[[SourceReader, PickleLimits], OpcodeArgument]


def read_no_argument(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    return None


def _number(form: str) -> ArgumentReader:
    packed = struct.Struct(form)

    def read(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        value: int | float = packed.unpack(tape.take(packed.size))[0]
        return value

    return read


def _length(tape: SourceReader, size: int) -> int:
    return int.from_bytes(tape.take(size), "little")


def _bytes(size: int) -> ArgumentReader:
    def read(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _length(tape, size)
        return tape.take(length) if length <= MAX_INLINE_BYTES else tape.skip(length)

    return read


def _text(size: int, encoding: str = "utf-8", errors: str = "surrogatepass") -> ArgumentReader:
    def read(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _length(tape, size)
        if length > limits.text:
            raise SafePickleError(f"a string of {length:,} bytes; at most {limits.text:,} are read")
        return _decoded(tape.take(length), encoding, errors)

    return read


def _decoded(data: bytes, encoding: str, errors: str) -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise SafePickleError(f"a string is not {encoding}") from error


def _long(size: int) -> ArgumentReader:
    def read(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = _length(tape, size)
        if length > LONG_BYTES:
            raise SafePickleError(f"an integer of {length:,} bytes")
        return int.from_bytes(tape.take(length), "little", signed=True)

    return read


def _lines(count: int) -> ArgumentReader:
    """Names, as GLOBAL and INST have them: `module name`."""

    def read(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        return " ".join(_decoded(tape.line(NUMBER_LINE), "utf-8", "strict") for _ in range(count))

    return read


def _raw_text(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    return _decoded(tape.line(limits.text), "raw-unicode-escape", "strict")


def _quoted(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    """A protocol 0 string stays as it is written, in quotes: nothing that we know reads one."""
    return _decoded(tape.line(limits.text), "latin-1", "strict")


def _decimal(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    line = tape.line(NUMBER_LINE).strip()
    try:
        return int(line.removesuffix(b"L"))
    except ValueError as error:
        raise SafePickleError("a number that is none") from error


def _decimal_float(tape: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    try:
        return float(tape.line(NUMBER_LINE))
    except ValueError as error:
        raise SafePickleError("a number that is none") from error


_TABLE: list[tuple[bytes, str, ArgumentReader]] = [
    (b"(", "MARK", read_no_argument),
    (b".", "STOP", read_no_argument),
    (b"0", "POP", read_no_argument),
    (b"1", "POP_MARK", read_no_argument),
    (b"2", "DUP", read_no_argument),
    (b"F", "FLOAT", _decimal_float),
    (b"I", "INT", _decimal),
    (b"J", "BININT", _number("<i")),
    (b"K", "BININT1", read_no_argument),
    (b"L", "LONG", _decimal),
    (b"M", "BININT2", read_no_argument),
    (b"N", "NONE", read_no_argument),
    (b"P", "PERSID", _lines(1)),
    (b"Q", "BINPERSID", read_no_argument),
    (b"R", "REDUCE", read_no_argument),
    (b"S", "STRING", _quoted),
    (b"T", "BINSTRING", _bytes(4)),
    (b"U", "SHORT_BINSTRING", _bytes(1)),
    (b"V", "UNICODE", _raw_text),
    (b"X", "BINUNICODE", _text(4)),
    (b"a", "APPEND", read_no_argument),
    (b"b", "BUILD", read_no_argument),
    (b"c", "GLOBAL", _lines(2)),
    (b"d", "DICT", read_no_argument),
    (b"}", "EMPTY_DICT", read_no_argument),
    (b"e", "APPENDS", read_no_argument),
    (b"g", "GET", _decimal),
    (b"h", "BINGET", read_no_argument),
    (b"i", "INST", _lines(2)),
    (b"j", "LONG_BINGET", read_no_argument),
    (b"l", "LIST", read_no_argument),
    (b"]", "EMPTY_LIST", read_no_argument),
    (b"o", "OBJ", read_no_argument),
    (b"p", "PUT", _decimal),
    (b"q", "BINPUT", read_no_argument),
    (b"r", "LONG_BINPUT", read_no_argument),
    (b"s", "SETITEM", read_no_argument),
    (b"t", "TUPLE", read_no_argument),
    (b")", "EMPTY_TUPLE", read_no_argument),
    (b"u", "SETITEMS", read_no_argument),
    (b"G", "BINFLOAT", _number(">d")),
    (b"\x80", "PROTO", read_no_argument),
    (b"\x81", "NEWOBJ", read_no_argument),
    (b"\x82", "EXT1", read_no_argument),
    (b"\x83", "EXT2", read_no_argument),
    (b"\x84", "EXT4", _number("<i")),
    (b"\x85", "TUPLE1", read_no_argument),
    (b"\x86", "TUPLE2", read_no_argument),
    (b"\x87", "TUPLE3", read_no_argument),
    (b"\x88", "NEWTRUE", read_no_argument),
    (b"\x89", "NEWFALSE", read_no_argument),
    (b"\x8a", "LONG1", _long(1)),
    (b"\x8b", "LONG4", _long(4)),
    (b"B", "BINBYTES", _bytes(4)),
    (b"C", "SHORT_BINBYTES", _bytes(1)),
    (b"\x8c", "SHORT_BINUNICODE", _text(1)),
    (b"\x8d", "BINUNICODE8", _text(8)),
    (b"\x8e", "BINBYTES8", _bytes(8)),
    (b"\x8f", "EMPTY_SET", read_no_argument),
    (b"\x90", "ADDITEMS", read_no_argument),
    (b"\x91", "FROZENSET", read_no_argument),
    (b"\x92", "NEWOBJ_EX", read_no_argument),
    (b"\x93", "STACK_GLOBAL", read_no_argument),
    (b"\x94", "MEMOIZE", read_no_argument),
    (b"\x95", "FRAME", read_no_argument),
    (b"\x96", "BYTEARRAY8", _bytes(8)),
    (b"\x97", "NEXT_BUFFER", read_no_argument),
    (b"\x98", "READONLY_BUFFER", read_no_argument),
]
OPCODE_READERS: dict[bytes, tuple[str, ArgumentReader]] = {code: (name, read) for code, name, read in _TABLE}
