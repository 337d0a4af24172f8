"""Runs a pickle's opcodes on a separate stack of only lists, dicts, plain values and placeholders.

No name is imported and nothing of the pickle is called. A stream that is not a valid pickle (it takes from an empty
stack) raises `SafePickleError`. An unknown global becomes an inert `Unreadable`, and so does everything built from it.
A value also becomes inert if an opcode does something to it that its type does not support.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rolloutdeck.safe_pickle import stream
from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load.globals import build_call_result, convert_dict_key
from rolloutdeck.safe_pickle.load.placeholders import Name, Piece, Storage, Unreadable
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, Opcode, PickleLimits, TorchArchive, scan_opcodes

MAX_TEXT_LENGTH = 1 << 30  # characters in all strings of a pickle
FREE_ARGUMENT_LENGTH = 1 << 20  # items and bytes that calls may receive, besides twice the size of the pickle
MAX_NAME_LENGTH = 1024  # characters of a module or a global
SIZED_TYPES = (str, bytes, list, tuple, dict, set, frozenset)
NUMBER_OPCODES = frozenset(("BININT", "BININT1", "BININT2", "BINFLOAT"))


def load_archive(source: ByteSource) -> Any:
    """Returns the value of the pickle in an archive of torch. Raises SafePickleError."""
    archive = TorchArchive.open(source)
    return load_pickle(archive.pickle, archive)


def load_pickle(source: ByteSource, archive: TorchArchive | None = None, limits: PickleLimits | None = None) -> Any:
    """Returns the value of a pickle. `archive` contains the storages of its persistent ids. Raises SafePickleError."""
    interpreter = PickleInterpreter(source, archive)
    for op in scan_opcodes(source, limits):
        if op[0] in NUMBER_OPCODES:  # a fast path: there are millions of tokens and log-probs
            interpreter.stack.append(op[1])
        else:
            interpreter.run_opcode(op)
    return interpreter.result()


class PickleInterpreter:
    """The stack, marks and memo of one pickle. Each handler runs one opcode."""

    def __init__(self, source: ByteSource, archive: TorchArchive | None) -> None:
        self.source = source
        self.archive = archive
        self.stack: list[Any] = []
        self.outer_stacks: list[list[Any]] = []  # the stacks below the open marks
        self.memo: dict[int, Any] = {}
        self.text_length = self.argument_length = 0

    def run_opcode(self, op: Opcode) -> None:
        try:
            OPCODE_HANDLERS[op.name](self, op)
        except IndexError as error:
            raise SafePickleError(f"{op.name} at {op.at:,} finds too few values on the stack") from error
        except KeyError as error:
            raise SafePickleError(f"{op.name} at {op.at:,} is not supported") from error

    def result(self) -> Any:
        if len(self.stack) != 1 or self.outer_stacks:
            raise SafePickleError("it does not end with one value")
        return self.stack[0]

    def push(self, op: Opcode) -> None:
        value = op.argument
        if isinstance(value, ByteSpan):
            value = Piece(self.source, value)  # type: ignore[assignment]
        elif isinstance(value, str):
            self.text_length += len(value)
            if self.text_length > MAX_TEXT_LENGTH:
                raise SafePickleError(f"more than {MAX_TEXT_LENGTH:,} characters of text")
        self.stack.append(value)

    def pop_to_mark(self, op: Opcode | None = None) -> list[Any]:
        """Removes and returns the values above the last mark."""
        above, self.stack = self.stack, self.outer_stacks.pop()
        return above

    def mark(self, op: Opcode) -> None:
        self.outer_stacks.append(self.stack)
        self.stack = []

    def pop(self, op: Opcode) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_to_mark()

    def duplicate(self, op: Opcode) -> None:
        self.stack.append(self.stack[-1])

    def put(self, op: Opcode) -> None:
        self.memo[cast(int, op.argument)] = self.stack[-1]

    def memoize(self, op: Opcode) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, op: Opcode) -> None:
        self.stack.append(self.memo[cast(int, op.argument)])

    def push_tuple(self, count: int) -> None:
        if count > len(self.stack):
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def close_dict(self, op: Opcode) -> None:
        items = self.pop_to_mark()
        self.stack.append({})
        self._set(items)

    def append(self, op: Opcode) -> None:
        self._extend([self.stack.pop()])

    def appends(self, op: Opcode) -> None:
        self._extend(self.pop_to_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        else:
            self._make_inert("appended to")

    def setitem(self, op: Opcode) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self._set([name, value])

    def setitems(self, op: Opcode) -> None:
        self._set(self.pop_to_mark())

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise SafePickleError("a dict with a key that has no value")
        if isinstance(target, dict):
            target.update(zip(map(convert_dict_key, items[::2]), items[1::2], strict=True))
        else:
            self._make_inert("given items")

    def additems(self, op: Opcode) -> None:
        items, target = self.pop_to_mark(), self.stack[-1]
        if isinstance(target, set):
            target.update(map(convert_dict_key, items))
        else:
            self._make_inert("added to")

    def _make_inert(self, reason: str) -> None:
        """Replaces the top value by an inert one: the opcode does not fit its type."""
        target = self.stack[-1]
        if not isinstance(target, Unreadable):
            self.stack[-1] = Unreadable(f"{type(target).__name__.lower()} that is {reason}")

    def push_global(self, op: Opcode) -> None:
        module, _, name = str(op.argument).partition(" ")
        self.stack.append(Name(module, name))

    def push_stack_global(self, op: Opcode) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            self.stack.append(Unreadable("a global whose name is not a string"))
        elif max(len(name), len(module)) > MAX_NAME_LENGTH:
            self.stack.append(Unreadable("a global with a long name"))
        else:
            self.stack.append(Name(module, name))

    def call_global(self, op: Opcode) -> None:
        args, target = self.stack.pop(), self.stack.pop()
        self._call(target, args)

    def call_with_keywords(self, op: Opcode) -> None:
        """A call with keyword arguments, which no known file has."""
        _, _, target = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._call(Unreadable(str(target)) if isinstance(target, Name) else target, ())

    def push_instance(self, op: Opcode) -> None:
        self.pop_to_mark()
        self.stack.append(Unreadable(str(op.argument).replace(" ", ".")))

    def call_object(self, op: Opcode) -> None:
        args = self.pop_to_mark()
        target = args.pop(0)
        self._call(target, tuple(args))

    def _call(self, target: Any, args: Any) -> None:
        if isinstance(args, tuple) and isinstance(target, Name):
            self.stack.append(build_call_result(target, args, self._count_argument_length))
        else:
            not_global = Unreadable("a call of something that is not a global")
            self.stack.append(target if isinstance(target, Unreadable) else not_global)

    def _count_argument_length(self, args: tuple[Any, ...]) -> None:
        """Limits the total length of arguments. A pickle can pass a memoized long argument again for 1 or 2 bytes."""
        self.argument_length += sum(len(arg) for arg in args if isinstance(arg, SIZED_TYPES))
        if self.argument_length > FREE_ARGUMENT_LENGTH + 2 * self.source.size:
            raise SafePickleError("it passes the same long values to calls again and again")

    def build(self, op: Opcode) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if hasattr(target, "set_state"):
            target.set_state(state)
        else:
            self._make_inert("given a state")

    def push_inert(self, op: Opcode) -> None:
        """A name of bytes outside the pickle (PERSID), an out-of-band buffer, or a number for a global (EXT1), which
        only the process that wrote the pickle knows."""
        name = "extension" if op.name.startswith("EXT") else op.name
        self.stack.append(Unreadable(f"{name} {op.argument!r:.80}"))

    def push_storage(self, op: Opcode) -> None:
        self.stack.append(self._resolve_storage(self.stack.pop()))

    def _resolve_storage(self, persistent_id: Any) -> Storage | Unreadable:
        """Returns the storage of a `persistent_id`: ("storage", torch.LongStorage, "0", "cpu", number of values)."""
        is_storage = isinstance(persistent_id, tuple) and len(persistent_id) == 5 and persistent_id[0] == "storage"
        if not is_storage or self.archive is None:
            return Unreadable("persistent id that is not a torch storage")
        _, kind, key, _, count = persistent_id
        dtype = stream.STORAGE_DTYPES.get(kind.name) if isinstance(kind, Name) and kind.module == "torch" else None
        if dtype is None:
            return Unreadable(f"storage of type {kind!s:.80}" if isinstance(kind, Name) else "storage of no type")
        if not isinstance(key, str) or type(count) is not int:
            raise SafePickleError("a torch storage without its key")
        span = self.archive.members.get(f"data/{key}")
        if span is None or not 0 <= count * stream.DTYPE_SIZES[dtype] <= span.length:
            raise SafePickleError(f"a storage of {count:,} values that the archive does not contain")
        return Storage(dtype, Piece(self.archive.source, span))


def _push_constant(value: Any) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda interpreter, op: interpreter.stack.append(value)


def _push_new(factory: Callable[[], Any]) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda interpreter, op: interpreter.stack.append(factory())


def _close(build: Callable[[list[Any]], Any]) -> Callable[[PickleInterpreter, Opcode], None]:
    def close(interpreter: PickleInterpreter, op: Opcode) -> None:
        members = interpreter.pop_to_mark()
        interpreter.stack.append(build(members))

    return close


def _push_tuple(count: int) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda interpreter, op: interpreter.push_tuple(count)


def _ignore(interpreter: PickleInterpreter, op: Opcode) -> None:
    """PROTO, FRAME and STOP: the scanner handles them."""


_PUSHED_OPCODES = (
    "NONE INT LONG BININT BININT1 BININT2 LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
OPCODE_HANDLERS: dict[str, Callable[[PickleInterpreter, Opcode], object]] = {
    **dict.fromkeys(_PUSHED_OPCODES.split(), PickleInterpreter.push),
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), _ignore),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), PickleInterpreter.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleInterpreter.get),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4", "PERSID", "NEXT_BUFFER"), PickleInterpreter.push_inert),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), PickleInterpreter.call_global),
    "NEWTRUE": _push_constant(True),
    "NEWFALSE": _push_constant(False),
    "EMPTY_TUPLE": _push_constant(()),
    "EMPTY_LIST": _push_new(list),
    "EMPTY_DICT": _push_new(dict),
    "EMPTY_SET": _push_new(set),
    **{f"TUPLE{count}": _push_tuple(count) for count in (1, 2, 3)},
    "TUPLE": _close(tuple),
    "LIST": _close(list),
    "DICT": PickleInterpreter.close_dict,
    "FROZENSET": _close(lambda members: frozenset(map(convert_dict_key, members))),
    "MARK": PickleInterpreter.mark,
    "POP": PickleInterpreter.pop,
    "POP_MARK": PickleInterpreter.pop_to_mark,
    "DUP": PickleInterpreter.duplicate,
    "MEMOIZE": PickleInterpreter.memoize,
    "APPEND": PickleInterpreter.append,
    "APPENDS": PickleInterpreter.appends,
    "SETITEM": PickleInterpreter.setitem,
    "SETITEMS": PickleInterpreter.setitems,
    "ADDITEMS": PickleInterpreter.additems,
    "GLOBAL": PickleInterpreter.push_global,
    "STACK_GLOBAL": PickleInterpreter.push_stack_global,
    "INST": PickleInterpreter.push_instance,
    "OBJ": PickleInterpreter.call_object,
    "NEWOBJ_EX": PickleInterpreter.call_with_keywords,
    "BUILD": PickleInterpreter.build,
    "BINPERSID": PickleInterpreter.push_storage,
}
