"""The opcodes of a pickle, one by one, without running any: protocols 0 to 5, names as in `pickletools`.

Long byte strings are skipped by seeking and told as a `Span`; everything else is read through a window of 64 KiB.
`pickletools.genops` does neither. What is more than `Limits` allow raises `Refused`, and so does what no pickler
writes: a memo index that leaps ahead (the C unpickler allocates for it), a frame that ends inside an opcode.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rolloutdeck.safe.errors import Refused
from rolloutdeck.safe.source import Source

INLINE = 4096  # bytes; a longer bytes argument stays in the file
BLOCK = 1 << 16  # bytes read at once
NUMBER_LINE = 1024  # bytes of a decimal number, digits and all
LONG_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a pickle is looked at. A step of 4,096 rows has about 5 million opcodes."""

    opcodes: int = 40_000_000
    memo: int = 16_000_000
    text: int = 64 << 20  # bytes of one string
    marks: int = 10_000  # open at once
    protocol: int = 5


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that were not read: where they lie in the source that was scanned."""

    start: int
    length: int


Argument = int | float | str | bytes | Span | None


class Op(NamedTuple):
    name: str
    argument: Argument
    at: int


class Tape:
    """Reads a source forwards in blocks; `at` is the position of the next byte."""

    __slots__ = ("_block", "_first", "at", "source")

    def __init__(self, source: Source) -> None:
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
                raise Refused("it ends inside a line" if length <= limit else f"a line of more than {limit:,} bytes")
            begin = self.at - self._first
            block = self._block if begin < len(self._block) else self._refill(1)
            begin = self.at - self._first
            end = block.find(b"\n", begin)
            parts.append(block[begin : len(block) if end < 0 else end])
            length += len(parts[-1])
            self.at = self._first + (len(block) if end < 0 else end + 1)
            if end >= 0:
                return b"".join(parts)

    def skip(self, length: int) -> Span:
        span = Span(self.at, length)
        if self.at + length > self.source.size:
            raise Refused(f"an argument of {length:,} bytes at {self.at:,} reaches beyond the end")
        self.at += length
        return span


Read = Callable[[Tape, Limits], Argument]


def _nothing(tape: Tape, limits: Limits) -> Argument:
    return None


def _number(form: str) -> Read:
    packed = struct.Struct(form)

    def read(tape: Tape, limits: Limits) -> Argument:
        value: int | float = packed.unpack(tape.take(packed.size))[0]
        return value

    return read


def _length(tape: Tape, size: int) -> int:
    return int.from_bytes(tape.take(size), "little")


def _bytes(size: int) -> Read:
    def read(tape: Tape, limits: Limits) -> Argument:
        length = _length(tape, size)
        return tape.take(length) if length <= INLINE else tape.skip(length)

    return read


def _text(size: int, encoding: str = "utf-8", errors: str = "surrogatepass") -> Read:
    def read(tape: Tape, limits: Limits) -> Argument:
        length = _length(tape, size)
        if length > limits.text:
            raise Refused(f"a string of {length:,} bytes; at most {limits.text:,} are read")
        return _decoded(tape.take(length), encoding, errors)

    return read


def _decoded(data: bytes, encoding: str, errors: str) -> str:
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise Refused(f"a string is not {encoding}") from error


def _long(size: int) -> Read:
    def read(tape: Tape, limits: Limits) -> Argument:
        length = _length(tape, size)
        if length > LONG_BYTES:
            raise Refused(f"an integer of {length:,} bytes")
        return int.from_bytes(tape.take(length), "little", signed=True)

    return read


def _lines(count: int) -> Read:
    """Names, as GLOBAL and INST have them: `module name`."""

    def read(tape: Tape, limits: Limits) -> Argument:
        return " ".join(_decoded(tape.line(NUMBER_LINE), "utf-8", "strict") for _ in range(count))

    return read


def _raw_text(tape: Tape, limits: Limits) -> Argument:
    return _decoded(tape.line(limits.text), "raw-unicode-escape", "strict")


def _quoted(tape: Tape, limits: Limits) -> Argument:
    """A protocol 0 string stays as it is written, in quotes: nothing that we know reads one."""
    return _decoded(tape.line(limits.text), "latin-1", "strict")


def _decimal(tape: Tape, limits: Limits) -> Argument:
    line = tape.line(NUMBER_LINE).strip()
    try:
        return int(line.removesuffix(b"L"))
    except ValueError as error:
        raise Refused("a number that is none") from error


def _decimal_float(tape: Tape, limits: Limits) -> Argument:
    try:
        return float(tape.line(NUMBER_LINE))
    except ValueError as error:
        raise Refused("a number that is none") from error


_TABLE: list[tuple[bytes, str, Read]] = [
    (b"(", "MARK", _nothing),
    (b".", "STOP", _nothing),
    (b"0", "POP", _nothing),
    (b"1", "POP_MARK", _nothing),
    (b"2", "DUP", _nothing),
    (b"F", "FLOAT", _decimal_float),
    (b"I", "INT", _decimal),
    (b"J", "BININT", _number("<i")),
    (b"K", "BININT1", _number("<B")),
    (b"L", "LONG", _decimal),
    (b"M", "BININT2", _number("<H")),
    (b"N", "NONE", _nothing),
    (b"P", "PERSID", _lines(1)),
    (b"Q", "BINPERSID", _nothing),
    (b"R", "REDUCE", _nothing),
    (b"S", "STRING", _quoted),
    (b"T", "BINSTRING", _bytes(4)),
    (b"U", "SHORT_BINSTRING", _bytes(1)),
    (b"V", "UNICODE", _raw_text),
    (b"X", "BINUNICODE", _text(4)),
    (b"a", "APPEND", _nothing),
    (b"b", "BUILD", _nothing),
    (b"c", "GLOBAL", _lines(2)),
    (b"d", "DICT", _nothing),
    (b"}", "EMPTY_DICT", _nothing),
    (b"e", "APPENDS", _nothing),
    (b"g", "GET", _decimal),
    (b"h", "BINGET", _number("<B")),
    (b"i", "INST", _lines(2)),
    (b"j", "LONG_BINGET", _number("<I")),
    (b"l", "LIST", _nothing),
    (b"]", "EMPTY_LIST", _nothing),
    (b"o", "OBJ", _nothing),
    (b"p", "PUT", _decimal),
    (b"q", "BINPUT", _number("<B")),
    (b"r", "LONG_BINPUT", _number("<I")),
    (b"s", "SETITEM", _nothing),
    (b"t", "TUPLE", _nothing),
    (b")", "EMPTY_TUPLE", _nothing),
    (b"u", "SETITEMS", _nothing),
    (b"G", "BINFLOAT", _number(">d")),
    (b"\x80", "PROTO", _number("<B")),
    (b"\x81", "NEWOBJ", _nothing),
    (b"\x82", "EXT1", _number("<B")),
    (b"\x83", "EXT2", _number("<H")),
    (b"\x84", "EXT4", _number("<i")),
    (b"\x85", "TUPLE1", _nothing),
    (b"\x86", "TUPLE2", _nothing),
    (b"\x87", "TUPLE3", _nothing),
    (b"\x88", "NEWTRUE", _nothing),
    (b"\x89", "NEWFALSE", _nothing),
    (b"\x8a", "LONG1", _long(1)),
    (b"\x8b", "LONG4", _long(4)),
    (b"B", "BINBYTES", _bytes(4)),
    (b"C", "SHORT_BINBYTES", _bytes(1)),
    (b"\x8c", "SHORT_BINUNICODE", _text(1)),
    (b"\x8d", "BINUNICODE8", _text(8)),
    (b"\x8e", "BINBYTES8", _bytes(8)),
    (b"\x8f", "EMPTY_SET", _nothing),
    (b"\x90", "ADDITEMS", _nothing),
    (b"\x91", "FROZENSET", _nothing),
    (b"\x92", "NEWOBJ_EX", _nothing),
    (b"\x93", "STACK_GLOBAL", _nothing),
    (b"\x94", "MEMOIZE", _nothing),
    (b"\x95", "FRAME", _number("<Q")),
    (b"\x96", "BYTEARRAY8", _bytes(8)),
    (b"\x97", "NEXT_BUFFER", _nothing),
    (b"\x98", "READONLY_BUFFER", _nothing),
]
CODES: dict[bytes, tuple[str, Read]] = {code: (name, read) for code, name, read in _TABLE}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_CLOSES = {
    "POP_MARK", "APPENDS", "DICT", "INST", "LIST", "OBJ", "SETITEMS", "TUPLE", "ADDITEMS", "FROZENSET",
}  # fmt: skip


def scan(source: Source, limits: Limits | None = None) -> Iterator[Op]:
    """Every opcode up to and with STOP; what follows STOP is not looked at. Raises Refused."""
    tape = Tape(source)
    rules = _Rules(limits or Limits(), source.size)
    while True:
        at = tape.at
        name, read = _code(tape)
        op = Op(name, read(tape, rules.limits), at)
        rules.check(op, tape.at)
        yield op
        if name == "STOP":
            return


def _code(tape: Tape) -> tuple[str, Read]:
    if tape.at >= tape.source.size:
        raise Refused(f"it ends after {tape.source.size:,} bytes without STOP: it is empty or was cut short")
    code = tape.take(1)
    known = CODES.get(code)
    if known is None:
        raise Refused(f"byte 0x{code.hex()} at {tape.at - 1:,} is no pickle opcode")
    return known


class _Rules:
    """What must hold from opcode to opcode."""

    __slots__ = ("count", "frame", "limits", "marks", "puts", "size")

    def __init__(self, limits: Limits, size: int) -> None:
        self.limits = limits
        self.size = size
        self.count = self.marks = self.puts = 0
        self.frame = 0  # where the open frame ends; 0 when none is

    def check(self, op: Op, end: int) -> None:
        self.count += 1
        if self.count > self.limits.opcodes:
            raise Refused(f"more than {self.limits.opcodes:,} opcodes")
        if self.frame:
            self._in_frame(op, end)
        rule = _RULES.get(op.name)
        if rule is not None:
            rule(self, op, end)

    def _in_frame(self, op: Op, end: int) -> None:
        if end > self.frame:
            raise Refused(f"the frame that ends at {self.frame:,} ends inside an opcode")
        if op.name == "FRAME":
            raise Refused(f"a frame at {op.at:,} inside another")
        if end == self.frame:
            self.frame = 0

    def _proto(self, op: Op, end: int) -> None:
        if op.at or op.argument not in range(self.limits.protocol + 1):
            raise Refused(f"protocol {op.argument} at {op.at:,}")

    def _open_frame(self, op: Op, end: int) -> None:
        assert isinstance(op.argument, int)
        if end + op.argument > self.size:
            raise Refused(f"a frame of {op.argument:,} bytes at {op.at:,} reaches beyond the end")
        self.frame = end + op.argument if op.argument else 0

    def _mark(self, op: Op, end: int) -> None:
        self.marks += 1
        if self.marks > self.limits.marks:
            raise Refused(f"more than {self.limits.marks:,} nested marks")

    def _close(self, op: Op, end: int) -> None:
        if not self.marks:
            raise Refused(f"{op.name} at {op.at:,} without a mark")
        self.marks -= 1

    def _put(self, op: Op, end: int) -> None:
        index = self.puts if op.name == "MEMOIZE" else op.argument
        assert isinstance(index, int)
        if not 0 <= index <= self.puts or self.puts >= self.limits.memo:
            raise Refused(f"memo index {index:,} at {op.at:,} after {self.puts:,} entries")
        self.puts = max(self.puts, index + 1)

    def _get(self, op: Op, end: int) -> None:
        assert isinstance(op.argument, int)
        if not 0 <= op.argument < self.puts:
            raise Refused(f"memo index {op.argument:,} at {op.at:,} was never stored")


_RULES: dict[str, Callable[[_Rules, Op, int], None]] = {
    "PROTO": _Rules._proto,
    "FRAME": _Rules._open_frame,
    "MARK": _Rules._mark,
    "MEMOIZE": _Rules._put,
    **dict.fromkeys(_PUTS, _Rules._put),
    **dict.fromkeys(_GETS, _Rules._get),
    **dict.fromkeys(_CLOSES, _Rules._close),
}
