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
        self._block = self.source.read(self.at, max(length, min(BLOCK_BYTES, self.source.size - self.at)))
        return self._block

    def read_line(self, limit: int) -> bytes:
        """Returns the bytes up to the next newline, without it."""
        parts: list[bytes] = []
        length = 0
        while True:
            if self.at >= self.source.size or length > limit:
                too_long = f"a line of more than {limit:,} bytes"
                raise SafePickleError(too_long if length > limit else "it ends inside a line")
            if self.at - self._block_start >= len(self._block):
                self._refill(1)
            begin = self.at - self._block_start
            end = self._block.find(b"\n", begin)
            parts.append(self._block[begin : end if end >= 0 else None])
            length += len(parts[-1])
            self.at += len(parts[-1])
            if end >= 0:
                self.at += 1
                return b"".join(parts)

    def skip(self, length: int) -> ByteSpan:
        span = ByteSpan(self.at, length)
        if self.at + length > self.source.size:
            raise SafePickleError(f"an argument of {length:,} bytes at {self.at:,} reaches beyond the end")
        self.at += length
        return span


ArgumentReader = Callable[[SourceReader, PickleLimits], OpcodeArgument]


def _build_number_reader(struct_format: str) -> ArgumentReader:
    number_struct = struct.Struct(struct_format)

    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        value: int | float = number_struct.unpack(reader.read_bytes(number_struct.size))[0]
        return value

    return read


def _build_bytes_reader(size: int) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = reader.read_unsigned(size)
        return reader.read_bytes(length) if length <= MAX_INLINE_BYTES else reader.skip(length)

    return read


def _build_text_reader(size: int) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = reader.read_unsigned(size)
        if length > limits.text:
            raise SafePickleError(f"a string of {length:,} bytes; at most {limits.text:,} are read")
        return _decode(reader.read_bytes(length), "utf-8", "surrogatepass")

    return read


def _decode(data: bytes, encoding: str, errors: str = "strict") -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise SafePickleError(f"a string is not {encoding}") from error


def _build_integer_reader(size: int) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        length = reader.read_unsigned(size)
        if length > MAX_INTEGER_BYTES:
            raise SafePickleError(f"an integer of {length:,} bytes")
        return int.from_bytes(reader.read_bytes(length), "little", signed=True)

    return read


def _build_names_reader(count: int) -> ArgumentReader:
    """For the names in GLOBAL and INST: `module name`."""

    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        return " ".join(_decode(reader.read_line(MAX_LINE_BYTES), "utf-8") for _ in range(count))

    return read


def _build_line_reader(encoding: str) -> ArgumentReader:
    return lambda reader, limits: _decode(reader.read_line(limits.text), encoding)


def _build_decimal_reader(parse: Callable[[bytes], int | float]) -> ArgumentReader:
    def read(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
        try:
            return parse(reader.read_line(MAX_LINE_BYTES))
        except ValueError as error:
            raise SafePickleError("an invalid number") from error

    return read


def _refuse_byte(reader: SourceReader, limits: PickleLimits) -> OpcodeArgument:
    at = reader.at - 1
    raise SafePickleError(f"byte 0x{reader.source.read(at, 1)[0]:02x} at {at:,} is no pickle opcode")


_read_decimal = _build_decimal_reader(lambda line: int(line.strip().removesuffix(b"L")))

# The opcodes of protocols 0 and 1 with their character, and those of newer protocols in the order of their codes.
_OLD_OPCODES = (
    "( MARK . STOP 0 POP 1 POP_MARK 2 DUP F FLOAT I INT J BININT K BININT1 L LONG M BININT2 N NONE P PERSID "
    "Q BINPERSID R REDUCE S STRING T BINSTRING U SHORT_BINSTRING V UNICODE X BINUNICODE a APPEND b BUILD c GLOBAL "
    "d DICT } EMPTY_DICT e APPENDS g GET h BINGET i INST j LONG_BINGET l LIST ] EMPTY_LIST o OBJ p PUT q BINPUT "
    "r LONG_BINPUT s SETITEM t TUPLE ) EMPTY_TUPLE u SETITEMS G BINFLOAT B BINBYTES C SHORT_BINBYTES"
)
_NEW_OPCODES = (
    "PROTO NEWOBJ EXT1 EXT2 EXT4 TUPLE1 TUPLE2 TUPLE3 NEWTRUE NEWFALSE LONG1 LONG4 SHORT_BINUNICODE BINUNICODE8 "
    "BINBYTES8 EMPTY_SET ADDITEMS FROZENSET NEWOBJ_EX STACK_GLOBAL MEMOIZE FRAME BYTEARRAY8 NEXT_BUFFER READONLY_BUFFER"
)


def _build_opcode_names() -> dict[int, str]:
    words = _OLD_OPCODES.split()
    old_names = zip(map(ord, words[::2]), words[1::2], strict=True)
    return {**dict(old_names), **dict(enumerate(_NEW_OPCODES.split(), 0x80))}


OPCODE_NAMES = _build_opcode_names()
# An opcode that is in neither table has no argument.
UNSIGNED_WIDTHS = {
    "BININT1": 1, "BININT2": 2, "BINGET": 1, "LONG_BINGET": 4, "BINPUT": 1, "LONG_BINPUT": 4, "PROTO": 1, "EXT1": 1,
    "EXT2": 2, "FRAME": 8,
}  # fmt: skip
ARGUMENT_READERS: dict[str, ArgumentReader] = {
    "FLOAT": _build_decimal_reader(float),
    "INT": _read_decimal,
    "LONG": _read_decimal,
    "GET": _read_decimal,
    "PUT": _read_decimal,
    "BININT": _build_number_reader("<i"),
    "EXT4": _build_number_reader("<i"),
    "BINFLOAT": _build_number_reader(">d"),
    "LONG1": _build_integer_reader(1),
    "LONG4": _build_integer_reader(4),
    "PERSID": _build_names_reader(1),
    "GLOBAL": _build_names_reader(2),
    "INST": _build_names_reader(2),
    "STRING": _build_line_reader("latin-1"),  # in quotes, as it is written: no known file uses one
    "UNICODE": _build_line_reader("raw-unicode-escape"),
    "SHORT_BINUNICODE": _build_text_reader(1),
    "BINUNICODE": _build_text_reader(4),
    "BINUNICODE8": _build_text_reader(8),
    "SHORT_BINSTRING": _build_bytes_reader(1),
    "SHORT_BINBYTES": _build_bytes_reader(1),
    "BINSTRING": _build_bytes_reader(4),
    "BINBYTES": _build_bytes_reader(4),
    "BINBYTES8": _build_bytes_reader(8),
    "BYTEARRAY8": _build_bytes_reader(8),
    "": _refuse_byte,  # for a byte that is no opcode
}
