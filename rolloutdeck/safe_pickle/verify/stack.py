"""The stack, marks and memo of an unpickler for plain values, and the reasons why a pickle may not be loaded."""

from __future__ import annotations

import re

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSpan, Opcode
from rolloutdeck.safe_pickle.verify.abstract_values import (
    MAX_SHORT_STRING,
    UNKNOWN,
    AbstractBytes,
    AbstractContainer,
    AbstractValue,
    LongString,
    RuleViolationError,
    WorkBudget,
    check_key,
    get_safety_level,
)

MAX_REASONS = 8
POSITION = re.compile(r"\bat \d[\d,]*")


class VerifierStack:
    """The stack, the marks and the memo of the verifier, and the reasons that it collects."""

    def __init__(self, budget: WorkBudget) -> None:
        self.budget = budget
        self._reasons: dict[str, tuple[str, int]] = {}  # without positions -> the first reason, how often
        self._stack: list[AbstractValue] = []
        self._marks: list[int] = []
        self._memo: list[AbstractValue] = []

    def add_reason(self, reason: str) -> None:
        kind = POSITION.sub("", reason)
        if kind in self._reasons or len(self._reasons) < MAX_REASONS:
            first, count = self._reasons.get(kind, (reason, 0))
            self._reasons[kind] = first, count + 1

    @property
    def reasons(self) -> list[str]:
        """The distinct reasons, at most MAX_REASONS, in order. A batch repeats most of them in each row."""
        return [first if count == 1 else f"{first} ({count:,} times)" for first, count in self._reasons.values()]

    def _floor(self) -> int:
        return self._marks[-1] if self._marks else 0

    def _pop(self) -> AbstractValue:
        if len(self._stack) <= self._floor():
            raise SafePickleError("it takes more values from the stack than it put there")
        return self._stack.pop()

    def _pop_mark(self) -> list[AbstractValue]:
        floor = self._marks.pop()
        values = self._stack[floor:]
        del self._stack[floor:]
        return values

    def _top(self) -> AbstractValue:
        if len(self._stack) <= self._floor():
            raise SafePickleError("it takes more values from the stack than it put there")
        return self._stack[-1]

    def _push(self, value: AbstractValue) -> None:
        self._stack.append(value)

    def _argument(self, op: Opcode) -> None:
        self._stack.append(op.argument)

    def _boolean(self, op: Opcode) -> None:
        self._stack.append(op.name == "NEWTRUE")

    def _text(self, op: Opcode) -> None:
        text = op.argument
        assert isinstance(text, str)
        self._stack.append(text if len(text) <= MAX_SHORT_STRING else LongString(len(text), _is_latin(text)))

    def _bytes(self, op: Opcode) -> None:
        if isinstance(op.argument, ByteSpan):
            self._push(AbstractBytes(op.argument.length, span=op.argument))
        else:
            assert isinstance(op.argument, bytes)
            self._push(AbstractBytes(len(op.argument), op.argument))

    def _empty(self, op: Opcode) -> None:
        self._stack.append(AbstractContainer(op.name[6:].lower()))

    def _tuple(self, op: Opcode) -> None:
        if op.name == "TUPLE":
            self._push(AbstractContainer("tuple", self._pop_mark()))
            return
        count = int(op.name[5])
        self._push(AbstractContainer("tuple", [self._pop() for _ in range(count)][::-1]))

    def _frozenset(self, op: Opcode) -> None:
        items = self._pop_mark()
        self._check_keys(items)
        self._push(AbstractContainer("frozenset", items))

    def _add(self, op: Opcode) -> None:
        items = [self._pop()] if op.name == "APPEND" else self._pop_mark()
        kind = "set" if op.name == "ADDITEMS" else "list"
        if kind == "set":
            self._check_keys(items)
        self._extend(self._top(), kind, items, op)

    def _set(self, op: Opcode) -> None:
        items = [self._pop(), self._pop()][::-1] if op.name == "SETITEM" else self._pop_mark()
        if len(items) % 2:
            raise SafePickleError(f"a key without a value at {op.at:,}")
        self._check_keys(items[::2])
        self._extend(self._top(), "dict", items, op)

    def _check_keys(self, keys: list[AbstractValue]) -> None:
        for key in keys:
            if type(key) is not str and not check_key(self.budget, key):
                self.add_reason("a key that is not a plain value")

    def _extend(self, container: AbstractValue, kind: str, items: list[AbstractValue], op: Opcode) -> None:
        if not isinstance(container, AbstractContainer) or container.kind != kind:
            if get_safety_level(container) < UNKNOWN:
                self.add_reason(f"{op.name} at {op.at:,} changes something that is not a {kind}")
            return
        try:
            container.extend(items)
        except RuleViolationError as error:
            self.add_reason(f"{error} (at {op.at:,})")
            container.level = UNKNOWN

    def _put(self, op: Opcode) -> None:
        index = len(self._memo) if op.name == "MEMOIZE" else op.argument
        assert isinstance(index, int)
        if index < len(self._memo):
            self.add_reason(f"it stores memo entry {index} twice")
            self._memo[index] = self._top()
        else:
            self._memo.append(self._top())

    def _get(self, op: Opcode) -> None:
        assert isinstance(op.argument, int)
        self._stack.append(self._memo[op.argument])

    def _mark(self, op: Opcode) -> None:
        self._marks.append(len(self._stack))


def _is_latin(text: str) -> bool:
    if text.isascii():
        return True
    try:
        return len(text.encode("latin-1")) == len(text)
    except UnicodeEncodeError:
        return False
