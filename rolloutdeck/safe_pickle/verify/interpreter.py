"""Follows a pickle's opcodes with shapes instead of values, and writes down why it may not be loaded.

The stack, the memo and the marks are those of `pickle.Unpickler`; nothing is imported, called or built. A call that no
rule allows is a reason and leaves something unknown; the rest is followed on, so that a reader can be told whether
values can be had from it. What breaks the stack itself raises Refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.stream.opcodes import Op, scan
from rolloutdeck.safe_pickle.stream.source import Source
from rolloutdeck.safe_pickle.stream.torch_archive import Archive
from rolloutdeck.safe_pickle.verify import rules
from rolloutdeck.safe_pickle.verify.abstract_values import (
    UNKNOWN,
    Box,
    Data,
    Global,
    Thing,
    Unfit,
    Value,
    level_of,
    unknown,
)
from rolloutdeck.safe_pickle.verify.stack import Stack

MAX_NESTED = 2  # archives inside archives


class Judge(Stack):
    """One pickle. `archive` is the ZIP around it, whose members are its storages."""

    def __init__(self, source: Source, archive: Archive | None = None, nested: int = 0) -> None:
        super().__init__()
        self.source = source
        self.archive = archive
        self.nested = nested
        self.storages: dict[str, tuple[str, int]] = {}
        self._inner = 0  # bytes of the archives inside it that were judged

    def root(self) -> Value:
        """What the whole pickle would build. Raises Refused."""
        if self.source.size and self.source.read(0, 1) != b"\x80":
            self.object("it does not begin with its protocol, as every file of torch and verl does")
        handler_of = self._HANDLERS.get
        for op in scan(self.source):
            handler = handler_of(op[0])
            if handler is not None:
                handler(self, op)
            elif op.name == "STOP":
                return self._end(op)
            else:
                self._foreign(op)
        raise Refused("it has no end")

    def _end(self, op: Op) -> Value:
        value = self._pop()
        if self._stack or self._marks:
            raise Refused("values are left over at its end")
        rest = self.source.size - op.at - 1
        if rest:
            self.object(f"{rest:,} bytes follow the end of the pickle")
        return value

    def embedded(self, data: Data) -> Value:
        """What a torch archive inside this pickle would build; its reasons become ours.

        Raises Refused when it is no canonical archive.
        """
        self._inner += data.length
        if self.nested >= MAX_NESTED or self._inner > self.source.size:
            raise Refused("archives inside archives inside archives, or one that is loaded again and again")
        archive = Archive.open(_inside(data, self.source))
        judge = Judge(archive.pickle, archive, self.nested + 1)
        value = judge.root()
        for reason in judge.reasons:
            self.object(f"in the archive inside it: {reason}")
        return value

    def _nothing(self, op: Op) -> None:
        pass

    # Names and calls

    def _global(self, op: Op) -> None:
        assert isinstance(op.argument, str)
        module, _, name = op.argument.partition(" ")
        self._name(module, name)

    def _stack_global(self, op: Op) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            self.object(f"the name of a global at {op.at:,} is no string")
            self._push(unknown())
            return
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        """A dot in the name would have the unpickler walk attributes."""
        dotted = f"{module}.{name}"
        if dotted in rules.NAMES and "." not in name:
            self._push(Global(dotted))
            return
        self.object(f"it names {dotted[:120]!r}, which is not on the list of what such a file holds")
        self._push(unknown())

    def _call(self, op: Op) -> None:
        args, target = self._pop(), self._pop()
        table = rules.CALLS if op.name == "REDUCE" else rules.NEW
        self._push(self._apply(table.get(getattr(target, "name", "")), target, args, op))

    def _apply(self, rule: rules.Rule | None, target: Value, args: Value, op: Op) -> Value:
        """The result of a rule, or something unknown with the reason, once."""
        worst = max(level_of(target), level_of(args))
        try:
            if rule is None or not isinstance(args, Box) or args.kind != "tuple":
                raise Unfit("it is called as nothing calls it")
            args.sealed = True
            result = rule(self, args.items)
            args.spend()
        except Unfit as unfit:
            if worst < UNKNOWN:
                self.object(f"{_told(target)} at {op.at:,}: {unfit}")
            return unknown()
        if worst == UNKNOWN and isinstance(result, (Thing, Box)):
            result.level = UNKNOWN
        return result

    def _build(self, op: Op) -> None:
        state, target = self._pop(), self._top()
        if isinstance(state, Box):
            state.sealed = True
        rule = rules.STATES.get(target.kind) if isinstance(target, Thing) else None
        worst = max(level_of(target), level_of(state))
        try:
            if rule is None:
                raise Unfit("it is given a state, which nothing gives it")
            rule(self, target, state)
        except Unfit as unfit:
            if worst < UNKNOWN:
                self.object(f"{_told(target)} at {op.at:,}: {unfit}")
            worst = UNKNOWN
        if worst == UNKNOWN and isinstance(target, (Thing, Box)):
            target.level = UNKNOWN

    def _persistent(self, op: Op) -> None:
        self._push(self._apply(rules.storage, Global("a persistent id"), self._pop(), op))

    # What only other picklers write

    def _foreign(self, op: Op) -> None:
        self.object(f"it has the opcode {op.name} at {op.at:,}, which no file of torch or verl has")
        if op.name in ("NEXT_BUFFER", "READONLY_BUFFER"):
            raise Refused("its buffers are not inside it")
        if op.name in ("LIST", "DICT", "OBJ", "INST", "POP_MARK"):
            self._pop_mark()
        if op.name in ("POP", "NEWOBJ_EX"):
            for _ in range(3 if op.name == "NEWOBJ_EX" else 1):
                self._pop()
        if op.name == "DUP":
            self._push(self._top())
        elif op.name == "GET":
            self._get(op)
        elif op.name == "PUT":
            self._put(op)
        elif op.name not in ("POP", "POP_MARK"):
            self._push(unknown())

    _HANDLERS: ClassVar[dict[str, Callable[[Judge, Op], None]]] = {
        "PROTO": _nothing,
        "FRAME": _nothing,
        "MARK": Stack._mark,
        **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), Stack._argument),
        **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE"), Stack._constant),
        **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), Stack._text),
        **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), Stack._bytes),
        **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "EMPTY_SET"), Stack._empty),
        **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), Stack._tuple),
        "FROZENSET": Stack._frozenset,
        **dict.fromkeys(("APPEND", "APPENDS", "ADDITEMS"), Stack._add),
        **dict.fromkeys(("SETITEM", "SETITEMS"), Stack._set),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), Stack._put),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), Stack._get),
        "GLOBAL": _global,
        "STACK_GLOBAL": _stack_global,
        **dict.fromkeys(("REDUCE", "NEWOBJ"), _call),
        "BUILD": _build,
        "BINPERSID": _persistent,
    }


def _told(target: Value) -> str:
    name = getattr(target, "name", None) or getattr(target, "kind", None) or "a plain value"
    return str(name)


def _inside(data: Data, source: Source) -> Source:
    """Bytes inside a pickle as a source of their own."""
    if data.span is not None:
        return source.window(data.span.start, data.span.length)
    if data.content is None:
        raise Refused("an archive that was written as text")
    return Source.of(data.content)
