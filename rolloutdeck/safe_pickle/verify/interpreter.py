"""Follows a pickle's opcodes with abstract values and collects the reasons why it may not be loaded.

The stack, the memo and the marks work as in `pickle.Unpickler`, but nothing is imported, called or built. A call that
no rule allows adds a reason and pushes an unknown object. The verifier then continues, because the report also says
whether our reader can read values from the file. Raises SafePickleError if the stack itself is broken.
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
    WorkBudget,
    build_unknown_object,
    get_safety_level,
)
from rolloutdeck.safe_pickle.verify.stack import VerifierStack

MAX_NESTING = 2  # archives inside archives


class PickleVerifier(VerifierStack):
    """Verifies one pickle. `archive` is the ZIP around it, whose members are its storages."""

    def __init__(
        self,
        source: ByteSource,
        archive: TorchArchive | None = None,
        nesting: int = 0,
        budget: WorkBudget | None = None,
    ) -> None:
        super().__init__(budget or WorkBudget(source.size, archive.source.size if archive else source.size))
        self.source = source
        self.archive = archive
        self.nesting = nesting
        self.storages: dict[str, tuple[str, int]] = {}
        self._embedded_bytes = 0  # bytes of the embedded archives that were verified

    def verify(self) -> AbstractValue:
        """Returns what the pickle would build. Raises SafePickleError."""
        if self.source.size and self.source.read(0, 1) != b"\x80":
            self.add_reason("it does not begin with its protocol, as every file of torch and verl does")
        handler_of = self._HANDLERS.get
        for op in scan_opcodes(self.source):
            handler = handler_of(op[0])
            if handler is not None:
                handler(self, op)
            elif op.name == "STOP":
                return self._finish(op)
            else:
                self._handle_foreign_opcode(op)
        raise SafePickleError("it has no end")

    def _finish(self, op: Opcode) -> AbstractValue:
        value = self._pop()
        if self._stack or self._marks:
            raise SafePickleError("values are left over at its end")
        trailing = self.source.size - op.at - 1
        if trailing:
            self.add_reason(f"{trailing:,} bytes follow the end of the pickle")
        return value

    def verify_embedded(self, data: AbstractBytes) -> AbstractValue:
        """Verifies a torch archive inside this pickle and adds its reasons. Raises SafePickleError if not canonical."""
        self._embedded_bytes += data.length
        if self.nesting >= MAX_NESTING or self._embedded_bytes > self.source.size:
            raise SafePickleError("archives inside archives inside archives, or one that is loaded again and again")
        archive = TorchArchive.open(_open_embedded(data, self.source))
        verifier = PickleVerifier(archive.pickle, archive, self.nesting + 1, self.budget)
        value = verifier.verify()
        for reason in verifier.reasons:
            self.add_reason(f"in the archive inside it: {reason}")
        return value

    # Names and calls

    def _global(self, op: Opcode) -> None:
        assert isinstance(op.argument, str)
        module, _, name = op.argument.partition(" ")
        self._push_global(module, name)

    def _stack_global(self, op: Opcode) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            self.add_reason(f"the name of a global at {op.at:,} is not a string")
            self._push(build_unknown_object())
            return
        self._push_global(module, name)

    def _push_global(self, module: str, name: str) -> None:
        """Pushes a global. A dot in `name` is refused, because the unpickler would then follow attributes."""
        dotted = f"{module}.{name}"
        if dotted in rules.ALLOWED_GLOBALS and "." not in name:
            self._push(GlobalReference(dotted))
            return
        self.add_reason(f"it names {dotted[:120]!r}, which is not on the list of what such a file holds")
        self._push(build_unknown_object())

    def _call(self, op: Opcode) -> None:
        args, target = self._pop(), self._pop()
        table = rules.CALL_RULES if op.name == "REDUCE" else rules.NEW_RULES
        self._push(self._apply(table.get(getattr(target, "name", "")), target, args, op))

    def _apply(
        self, rule: rules.CallRule | None, target: AbstractValue, args: AbstractValue, op: Opcode
    ) -> AbstractValue:
        """Returns the result of a rule. If it fails, adds the reason and returns an unknown object."""
        worst = max(get_safety_level(target), get_safety_level(args))
        try:
            if rule is None or not isinstance(args, AbstractContainer) or args.kind != "tuple":
                raise RuleViolationError("it is called with arguments that no known file uses")
            args.sealed = True
            result = rule(self, args.items)
            args.release_items()
        except RuleViolationError as error:
            if worst < UNKNOWN:
                self.add_reason(f"{_describe(target)} at {op.at:,}: {error}")
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
                raise RuleViolationError("it is given a state, which no known file does")
            rule(self, target, state)
        except RuleViolationError as error:
            if worst < UNKNOWN:
                self.add_reason(f"{_describe(target)} at {op.at:,}: {error}")
            worst = UNKNOWN
        if worst == UNKNOWN and isinstance(target, (AbstractObject, AbstractContainer)):
            target.level = UNKNOWN

    def _persistent(self, op: Opcode) -> None:
        self._push(self._apply(rules.verify_storage, GlobalReference("a persistent id"), self._pop(), op))

    # Opcodes that only other picklers write

    def _handle_foreign_opcode(self, op: Opcode) -> None:
        self.add_reason(f"it has the opcode {op.name} at {op.at:,}, which no file of torch or verl has")
        if op.name in ("NEXT_BUFFER", "READONLY_BUFFER"):
            raise SafePickleError("its buffers are outside the file")
        if op.name in ("LIST", "DICT", "OBJ", "INST", "POP_MARK"):
            self._pop_mark()
        for _ in range({"POP": 1, "NEWOBJ_EX": 3}.get(op.name, 0)):
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
        **dict.fromkeys(("PROTO", "FRAME"), lambda verifier, op: None),
        "MARK": VerifierStack._mark,
        **dict.fromkeys(("NONE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), VerifierStack._argument),
        **dict.fromkeys(("NEWTRUE", "NEWFALSE"), VerifierStack._boolean),
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


def _describe(target: AbstractValue) -> str:
    return str(getattr(target, "name", None) or getattr(target, "kind", None) or "a plain value")


def _open_embedded(data: AbstractBytes, source: ByteSource) -> ByteSource:
    """Returns bytes inside a pickle as a separate source."""
    if data.span is not None:
        return source.window(data.span.start, data.span.length)
    if data.content is None:
        raise SafePickleError("an archive that was written as text")
    return ByteSource.from_bytes(data.content)
