"""The opcodes of a pickle, one by one, without running any: protocols 0 to 5, names as in `pickletools`.

Long byte strings are skipped by seeking and told as a `ByteSpan`; everything else is read through a window of 64 KiB.
`pickletools.genops` does neither. What is more than `PickleLimits` allow raises `SafePickleError`, and so does what no
pickler writes: a memo index that leaps ahead (the C unpickler allocates for it), a frame that ends inside an opcode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream.arguments import (
    MAX_INLINE_BYTES,
    OPCODE_READERS,
    ArgumentReader,
    ByteSpan,
    OpcodeArgument,
    PickleLimits,
    SourceReader,
    read_no_argument,
)
from rolloutdeck.safe_pickle.stream.source import ByteSource

__all__ = ["MAX_INLINE_BYTES", "PickleLimits", "Opcode", "ByteSpan", "scan_opcodes"]


class Opcode(NamedTuple):
    name: str
    argument: OpcodeArgument
    at: int


_PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_CLOSES = {
    "POP_MARK", "APPENDS", "DICT", "INST", "LIST", "OBJ", "SETITEMS", "TUPLE", "ADDITEMS", "FROZENSET",
}  # fmt: skip


def scan_opcodes(source: ByteSource, limits: PickleLimits | None = None) -> Iterator[Opcode]:
    """Every opcode up to and with STOP; what follows STOP is not looked at. Raises SafePickleError.

    A step has millions of opcodes, most of them a byte or two: those are taken from the block right here.
    """
    tape = SourceReader(source)
    rules = _Rules(limits or PickleLimits(), source.size)
    make = tuple.__new__
    for _ in range(rules.limits.opcodes):
        at = tape.at
        code = tape.byte()
        name, width, read, rule = _KINDS[code] or _no_kind(code, at)
        argument = tape.unsigned(width) if width else read(tape, rules.limits) if read else None
        op = make(Opcode, (name, argument, at))
        if rules.frame and (tape.at >= rules.frame or name == "FRAME"):
            rules.end_frame(op, tape.at)
        if rule is not None:
            rule(rules, op, tape.at)
        yield op
        if name == "STOP":
            return
    raise SafePickleError(f"more than {rules.limits.opcodes:,} opcodes")


def _no_kind(code: int, at: int) -> NoReturn:
    raise SafePickleError(f"byte 0x{code:02x} at {at:,} is no pickle opcode")


class _Rules:
    """What must hold from opcode to opcode."""

    __slots__ = ("frame", "limits", "marks", "puts", "size")

    def __init__(self, limits: PickleLimits, size: int) -> None:
        self.limits = limits
        self.size = size
        self.marks = self.puts = 0
        self.frame = 0  # where the open frame ends; 0 when none is

    def end_frame(self, op: Opcode, end: int) -> None:
        if end > self.frame:
            raise SafePickleError(f"the frame that ends at {self.frame:,} ends inside an opcode")
        if op.name == "FRAME":
            raise SafePickleError(f"a frame at {op.at:,} inside another")
        self.frame = 0

    def _proto(self, op: Opcode, end: int) -> None:
        if op.at or op.argument not in range(self.limits.protocol + 1):
            raise SafePickleError(f"protocol {op.argument!r} at {op.at:,}")

    def _open_frame(self, op: Opcode, end: int) -> None:
        assert isinstance(op.argument, int)
        if end + op.argument > self.size:
            raise SafePickleError(f"a frame of {op.argument:,} bytes at {op.at:,} reaches beyond the end")
        self.frame = end + op.argument if op.argument else 0

    def _mark(self, op: Opcode, end: int) -> None:
        self.marks += 1
        if self.marks > self.limits.marks:
            raise SafePickleError(f"more than {self.limits.marks:,} nested marks")

    def _close(self, op: Opcode, end: int) -> None:
        if not self.marks:
            raise SafePickleError(f"{op.name} at {op.at:,} without a mark")
        self.marks -= 1

    def _put(self, op: Opcode, end: int) -> None:
        index = self.puts if op.name == "MEMOIZE" else op.argument
        assert isinstance(index, int)
        if not 0 <= index <= self.puts or self.puts >= self.limits.memo:
            raise SafePickleError(f"memo index {index:,} at {op.at:,} after {self.puts:,} entries")
        self.puts = max(self.puts, index + 1)

    def _get(self, op: Opcode, end: int) -> None:
        assert isinstance(op.argument, int)
        if not 0 <= op.argument < self.puts:
            raise SafePickleError(f"memo index {op.argument:,} at {op.at:,} was never stored")


_RULES: dict[str, Callable[[_Rules, Opcode, int], None]] = {
    "PROTO": _Rules._proto,
    "FRAME": _Rules._open_frame,
    "MARK": _Rules._mark,
    "MEMOIZE": _Rules._put,
    **dict.fromkeys(_PUTS, _Rules._put),
    **dict.fromkeys(_GETS, _Rules._get),
    **dict.fromkeys(_CLOSES, _Rules._close),
}


def _kinds() -> Iterator[_Kind | None]:
    for code in range(256):
        known = OPCODE_READERS.get(bytes([code]))
        name, read = known or ("", read_no_argument)
        yield (
            (name, _WIDTHS.get(name, 0), None if read is read_no_argument else read, _RULES.get(name))
            if known
            else None
        )


# By code: name, bytes of an unsigned argument or 0, what reads another argument, what must hold.
_Kind = tuple[str, int, ArgumentReader | None, Callable[[_Rules, Opcode, int], None] | None]
_WIDTHS = {
    "BININT1": 1, "BININT2": 2, "BINGET": 1, "LONG_BINGET": 4, "BINPUT": 1, "LONG_BINPUT": 4, "PROTO": 1, "EXT1": 1,
    "EXT2": 2, "FRAME": 8,
}  # fmt: skip
_KINDS: list[_Kind | None] = list(_kinds())
