"""Follows a pickle's opcodes with shapes instead of values, and writes down why it may not be loaded.

The stack, the memo and the marks are those of `pickle.Unpickler`; nothing is imported, called or built. A call that no
rule allows is a reason and leaves something unknown; the rest is followed on, so that a reader can be told whether
values can be had from it. What breaks the stack itself raises SafePickleError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSource, Opcode, TorchArchive, scan_opcodes
from rolloutdeck.safe_pickle.verify import rules
from rolloutdeck.safe_pickle.verify.abstract_values import (
    UNKNOWN,
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    build_unknown_object,
    get_safety_level,
)
from rolloutdeck.safe_pickle.verify.stack import VerifierStack

MAX_NESTED = 2  # archives inside archives


class PickleVerifier(VerifierStack):
    """One pickle. `archive` is the ZIP around it, whose members are its storages."""

    def __init__(self, source: ByteSource, archive: TorchArchive | None = None, nested: int = 0) -> None:
        super().__init__()
        self.source = source
        self.archive = archive
        self.nested = nested
        self.storages: dict[str, tuple[str, int]] = {}
        self._inner = 0  # bytes of the archives inside it that were judged

    def root(self) -> AbstractValue:
        """What the whole pickle would build. Raises SafePickleError."""
        if self.source.size and self.source.read(0, 1) != b"\x80":
            self.object("it does not begin with its protocol, as every file of torch and verl does")
        handler_of = self._HANDLERS.get
        for op in scan_opcodes(self.source):
            handler = handler_of(op[0])
            if handler is not None:
                handler(self, op)
            elif op.name == "STOP":
                return self._end(op)
            else:
                self._foreign(op)
        raise SafePickleError("it has no end")

    def _end(self, op: Opcode) -> AbstractValue:
        value = self._pop()
        if self._stack or self._marks:
            raise SafePickleError("values are left over at its end")
        rest = self.source.size - op.at - 1
        if rest:
            self.object(f"{rest:,} bytes follow the end of the pickle")
        return value

    def embedded(self, data: AbstractBytes) -> AbstractValue:
        """What a torch archive inside this pickle would build; its reasons become ours.

        Raises SafePickleError when it is no canonical archive.
        """
        self._inner += data.length
        if self.nested >= MAX_NESTED or self._inner > self.source.size:
            raise SafePickleError("archives inside archives inside archives, or one that is loaded again and again")
        archive = TorchArchive.open(_inside(data, self.source))
        judge = PickleVerifier(archive.pickle, archive, self.nested + 1)
        value = judge.root()
        for reason in judge.reasons:
            self.object(f"in the archive inside it: {reason}")
        return value

    def _nothing(self, op: Opcode) -> None:
        pass

    # Names and calls

    def _global(self, op: Opcode) -> None:
        assert isinstance(op.argument, str)
        module, _, name = op.argument.partition(" ")
        self._name(module, name)

    def _stack_global(self, op: Opcode) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            self.object(f"the name of a global at {op.at:,} is no string")
            self._push(build_unknown_object())
            return
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        """A dot in the name would have the unpickler walk attributes."""
        dotted = f"{module}.{name}"
        if dotted in rules.ALLOWED_GLOBALS and "." not in name:
            self._push(GlobalReference(dotted))
            return
        self.object(f"it names {dotted[:120]!r}, which is not on the list of what such a file holds")
        self._push(build_unknown_object())

    def _call(self, op: Opcode) -> None:
        args, target = self._pop(), self._pop()
        table = rules.CALL_RULES if op.name == "REDUCE" else rules.NEW_RULES
        self._push(self._apply(table.get(getattr(target, "name", "")), target, args, op))

    def _apply(
        self, rule: rules.CallRule | None, target: AbstractValue, args: AbstractValue, op: Opcode
    ) -> AbstractValue:
        """The result of a rule, or something unknown with the reason, once."""
        worst = max(get_safety_level(target), get_safety_level(args))
        try:
            if rule is None or not isinstance(args, AbstractContainer) or args.kind != "tuple":
                raise RuleViolationError("it is called as nothing calls it")
            args.sealed = True
            result = rule(self, args.items)
            args.spend()
        except RuleViolationError as unfit:
            if worst < UNKNOWN:
                self.object(f"{_told(target)} at {op.at:,}: {unfit}")
            return build_unknown_object()
        if worst == UNKNOWN and isinstance(result, (AbstractObject, AbstractContainer)):
            result.level = UNKNOWN
        return result

    def _build(self, op: Opcode) -> None:
        state, target = self._pop(), self._top()
        if isinstance(state, AbstractContainer):
            state.sealed = True
        rule = rules.STATE_RULES.get(target.kind) if isinstance(target, AbstractObject) else None
        worst = max(get_safety_level(target), get_safety_level(state))
        try:
            if rule is None:
                raise RuleViolationError("it is given a state, which nothing gives it")
            rule(self, target, state)
        except RuleViolationError as unfit:
            if worst < UNKNOWN:
                self.object(f"{_told(target)} at {op.at:,}: {unfit}")
            worst = UNKNOWN
        if worst == UNKNOWN and isinstance(target, (AbstractObject, AbstractContainer)):
            target.level = UNKNOWN

    def _persistent(self, op: Opcode) -> None:
        self._push(self._apply(rules.verify_storage, GlobalReference("a persistent id"), self._pop(), op))

    # What only other picklers write

    def _foreign(self, op: Opcode) -> None:
        self.object(f"it has the opcode {op.name} at {op.at:,}, which no file of torch or verl has")
        if op.name in ("NEXT_BUFFER", "READONLY_BUFFER"):
            raise SafePickleError("its buffers are not inside it")
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
            self._push(build_unknown_object())

    _HANDLERS: ClassVar[dict[str, Callable[[PickleVerifier, Opcode], None]]] = {
        "PROTO": _nothing,
        "FRAME": _nothing,
        "MARK": VerifierStack._mark,
        **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), VerifierStack._argument),
        **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE"), VerifierStack._constant),
        **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), VerifierStack._text),
        **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"), VerifierStack._bytes),
        **dict.fromkeys(("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE", "EMPTY_SET"), VerifierStack._empty),
        **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), VerifierStack._tuple),
        "FROZENSET": VerifierStack._frozenset,
        **dict.fromkeys(("APPEND", "APPENDS", "ADDITEMS"), VerifierStack._add),
        **dict.fromkeys(("SETITEM", "SETITEMS"), VerifierStack._set),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), VerifierStack._put),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), VerifierStack._get),
        "GLOBAL": _global,
        "STACK_GLOBAL": _stack_global,
        **dict.fromkeys(("REDUCE", "NEWOBJ"), _call),
        "BUILD": _build,
        "BINPERSID": _persistent,
    }


def _told(target: AbstractValue) -> str:
    name = getattr(target, "name", None) or getattr(target, "kind", None) or "a plain value"
    return str(name)


def _inside(data: AbstractBytes, source: ByteSource) -> ByteSource:
    """Bytes inside a pickle as a source of their own."""
    if data.span is not None:
        return source.window(data.span.start, data.span.length)
    if data.content is None:
        raise SafePickleError("an archive that was written as text")
    return ByteSource.of(data.content)
