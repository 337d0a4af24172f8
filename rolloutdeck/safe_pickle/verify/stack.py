"""The stack, marks and memo of an unpickler, as far as plain values go; and the reasons that are found on the way."""

from __future__ import annotations

from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.stream.opcodes import Op, Span
from rolloutdeck.safe_pickle.verify.abstract_values import (
    SHORT,
    UNKNOWN,
    Box,
    Data,
    Text,
    Unfit,
    Value,
    is_key,
    level_of,
)

MAX_REASONS = 8


class Stack:
    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}
        self._stack: list[Value] = []
        self._marks: list[int] = []
        self._memo: list[Value] = []

    def object(self, reason: str) -> None:
        if len(self.reasons) < MAX_REASONS:
            self.reasons[reason] = None

    def _floor(self) -> int:
        return self._marks[-1] if self._marks else 0

    def _pop(self) -> Value:
        if len(self._stack) <= self._floor():
            raise Refused("it takes more values than it put there")
        return self._stack.pop()

    def _pop_mark(self) -> list[Value]:
        floor = self._marks.pop()
        values = self._stack[floor:]
        del self._stack[floor:]
        return values

    def _top(self) -> Value:
        if len(self._stack) <= self._floor():
            raise Refused("it takes more values than it put there")
        return self._stack[-1]

    def _push(self, value: Value) -> None:
        self._stack.append(value)

    def _argument(self, op: Op) -> None:
        self._stack.append(op.argument)

    def _constant(self, op: Op) -> None:
        self._stack.append(_CONSTANTS[op.name])

    def _text(self, op: Op) -> None:
        text = op.argument
        assert isinstance(text, str)
        self._stack.append(text if len(text) <= SHORT else Text(len(text), _is_latin(text)))

    def _bytes(self, op: Op) -> None:
        if isinstance(op.argument, Span):
            self._push(Data(op.argument.length, span=op.argument))
        else:
            assert isinstance(op.argument, bytes)
            self._push(Data(len(op.argument), op.argument))

    def _empty(self, op: Op) -> None:
        self._stack.append(Box(op.name[6:].lower()))

    def _tuple(self, op: Op) -> None:
        if op.name == "TUPLE":
            self._push(Box("tuple", self._pop_mark()))
            return
        count = int(op.name[5])
        self._push(Box("tuple", [self._pop() for _ in range(count)][::-1]))

    def _frozenset(self, op: Op) -> None:
        items = self._pop_mark()
        self._check_keys(items)
        self._push(Box("frozenset", items))

    def _add(self, op: Op) -> None:
        items = [self._pop()] if op.name == "APPEND" else self._pop_mark()
        kind = "set" if op.name == "ADDITEMS" else "list"
        if kind == "set":
            self._check_keys(items)
        self._extend(self._top(), kind, items, op)

    def _set(self, op: Op) -> None:
        items = [self._pop(), self._pop()][::-1] if op.name == "SETITEM" else self._pop_mark()
        if len(items) % 2:
            raise Refused(f"a key without a value at {op.at:,}")
        self._check_keys(items[::2])
        self._extend(self._top(), "dict", items, op)

    def _check_keys(self, keys: list[Value]) -> None:
        for key in keys:
            if type(key) is not str and not is_key(key):
                self.object("a key that is no plain value")

    def _extend(self, box: Value, kind: str, items: list[Value], op: Op) -> None:
        if not isinstance(box, Box) or box.kind != kind:
            if level_of(box) < UNKNOWN:
                self.object(f"{op.name} at {op.at:,} changes something that is no {kind}")
            return
        try:
            box.extend(items)
        except Unfit as unfit:
            self.object(f"{unfit} (at {op.at:,})")
            box.level = UNKNOWN

    def _put(self, op: Op) -> None:
        index = len(self._memo) if op.name == "MEMOIZE" else op.argument
        assert isinstance(index, int)
        if index < len(self._memo):
            self.object(f"it stores memo entry {index} twice")
            self._memo[index] = self._top()
        else:
            self._memo.append(self._top())

    def _get(self, op: Op) -> None:
        assert isinstance(op.argument, int)
        self._stack.append(self._memo[op.argument])

    def _mark(self, op: Op) -> None:
        self._marks.append(len(self._stack))


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


def _is_latin(text: str) -> bool:
    if text.isascii():
        return True
    try:
        return len(text.encode("latin-1")) == len(text)
    except UnicodeEncodeError:
        return False
