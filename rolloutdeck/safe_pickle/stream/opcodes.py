"""Yields the opcodes of a pickle without running any: protocols 0 to 5, names as in `pickletools`.

Long byte strings are skipped by seeking and returned as a `ByteSpan`. Everything else is read in blocks of 64 KiB.
`pickletools.genops` does neither. Raises `SafePickleError` if a stream exceeds `PickleLimits`, or contains what no
pickler writes: a memo index that skips entries (the C unpickler allocates memory for it), or a frame that ends inside
an opcode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import arguments
from rolloutdeck.safe_pickle.stream.source import ByteSource


class Opcode(NamedTuple):
    name: str
    argument: arguments.OpcodeArgument
    at: int


_MARK_CLOSERS = ("POP_MARK", "APPENDS", "DICT", "INST", "LIST", "OBJ", "SETITEMS", "TUPLE", "ADDITEMS", "FROZENSET")


def scan_opcodes(source: ByteSource, limits: arguments.PickleLimits | None = None) -> Iterator[Opcode]:
    """Yields every opcode up to and including STOP. Bytes after STOP are not read. Raises SafePickleError.

    A step has millions of opcodes, most of them one or two bytes long. For speed, this loop reads those directly.
    """
    reader = arguments.SourceReader(source)
    rules = _StreamRules(limits or arguments.PickleLimits(), source.size)
    new_tuple = tuple.__new__
    for _ in range(rules.limits.opcodes):
        at = reader.at
        name, width, read, rule = _OPCODE_SPECS[reader.read_byte()]
        argument = reader.read_unsigned(width) if width else read(reader, rules.limits) if read else None
        op = new_tuple(Opcode, (name, argument, at))
        if rules.frame and (reader.at >= rules.frame or name == "FRAME"):
            rules.end_frame(op, reader.at)
        if rule is not None:
            rule(rules, op, reader.at)
        yield op
        if name == "STOP":
            return
    raise SafePickleError(f"more than {rules.limits.opcodes:,} opcodes")


class _StreamRules:
    """The rules between opcodes: frames, marks and memo entries."""

    __slots__ = ("frame", "limits", "marks", "puts", "size")

    def __init__(self, limits: arguments.PickleLimits, size: int) -> None:
        self.limits = limits
        self.size = size
        self.marks = self.puts = 0
        self.frame = 0  # the end of the open frame; 0 if none is open

    def end_frame(self, op: Opcode, end: int) -> None:
        if end > self.frame:
            raise SafePickleError(f"the frame that ends at {self.frame:,} ends inside an opcode")
        if op.name == "FRAME":
            raise SafePickleError(f"a frame at {op.at:,} inside another")
        self.frame = 0

    def _check_protocol(self, op: Opcode, end: int) -> None:
        if op.at or op.argument not in range(self.limits.protocol + 1):
            raise SafePickleError(f"protocol {op.argument!r} at {op.at:,}")

    def _open_frame(self, op: Opcode, end: int) -> None:
        assert isinstance(op.argument, int)
        if end + op.argument > self.size:
            raise SafePickleError(f"a frame of {op.argument:,} bytes at {op.at:,} reaches beyond the end")
        self.frame = end + op.argument if op.argument else 0

    def _count_mark(self, op: Opcode, end: int) -> None:
        self.marks += 1
        if self.marks > self.limits.marks:
            raise SafePickleError(f"more than {self.limits.marks:,} nested marks")

    def _close_mark(self, op: Opcode, end: int) -> None:
        if not self.marks:
            raise SafePickleError(f"{op.name} at {op.at:,} without a mark")
        self.marks -= 1

    def _check_put(self, op: Opcode, end: int) -> None:
        index = self.puts if op.name == "MEMOIZE" else op.argument
        assert isinstance(index, int)
        if not 0 <= index <= self.puts or self.puts >= self.limits.memo:
            raise SafePickleError(f"memo index {index:,} at {op.at:,} after {self.puts:,} entries")
        self.puts = max(self.puts, index + 1)

    def _check_get(self, op: Opcode, end: int) -> None:
        assert isinstance(op.argument, int)
        if not 0 <= op.argument < self.puts:
            raise SafePickleError(f"memo index {op.argument:,} at {op.at:,} was never stored")


_RULES: dict[str, Callable[[_StreamRules, Opcode, int], None]] = {
    "PROTO": _StreamRules._check_protocol,
    "FRAME": _StreamRules._open_frame,
    "MARK": _StreamRules._count_mark,
    **dict.fromkeys(("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"), _StreamRules._check_put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _StreamRules._check_get),
    **dict.fromkeys(_MARK_CLOSERS, _StreamRules._close_mark),
}


# By code: name, width of an unsigned argument in bytes or 0, reader of any other argument, rule to check.
_OpcodeSpec = tuple[str, int, arguments.ArgumentReader | None, Callable[[_StreamRules, Opcode, int], None] | None]


def _build_opcode_spec(code: int) -> _OpcodeSpec:
    name = arguments.OPCODE_NAMES.get(code, "")
    return name, arguments.UNSIGNED_WIDTHS.get(name, 0), arguments.ARGUMENT_READERS.get(name), _RULES.get(name)


_OPCODE_SPECS = [_build_opcode_spec(code) for code in range(256)]
