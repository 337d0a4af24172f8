"""Runs a pickle's opcodes on a stack of our own, where only lists, dicts, plain values and stand-ins come to be.

No name is imported and nothing of the pickle is called. A stream that no pickle can be (it takes from an empty stack)
raises `SafePickleError`; a global that we do not know becomes an inert `Unreadable`, and so does what is built on it,
and what is done to a value that it can't be done to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.load.globals import build_call_result, convert_dict_key
from rolloutdeck.safe_pickle.load.placeholders import DTYPE_SIZES, STORAGE_DTYPES, Name, Piece, Storage, Unreadable
from rolloutdeck.safe_pickle.stream import ByteSource, ByteSpan, Opcode, PickleLimits, TorchArchive, scan_opcodes

MAX_TEXT = 1 << 30  # characters of all strings of a pickle together
FREE_WORK = 1 << 20
NUMBERS = frozenset(("BININT", "BININT1", "BININT2", "BINFLOAT"))


def load_pickle(source: ByteSource, archive: TorchArchive | None = None, limits: PickleLimits | None = None) -> Any:
    """The value of a pickle. `archive` is where its persistent ids lie. Raises SafePickleError."""
    machine = PickleInterpreter(source, archive)
    for op in scan_opcodes(source, limits):
        if op[0] in NUMBERS:  # of tokens and log-probs there are millions
            machine.stack.append(op[1])
        else:
            machine.step(op)
    return machine.result()


class PickleInterpreter:
    def __init__(self, source: ByteSource, archive: TorchArchive | None) -> None:
        self.source = source
        self.archive = archive
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under the open marks
        self.memo: dict[int, Any] = {}
        self.text = self.work = 0

    def step(self, op: Opcode) -> None:
        try:
            STEPS[op.name](self, op)
        except IndexError as error:
            raise SafePickleError(f"{op.name} at {op.at:,} finds too little on the stack") from error
        except KeyError as error:
            raise SafePickleError(f"{op.name} at {op.at:,} is not read") from error

    def result(self) -> Any:
        if len(self.stack) != 1 or self.below:
            raise SafePickleError("it does not end with one value")
        return self.stack[0]

    def push(self, op: Opcode) -> None:
        value = op.argument
        if isinstance(value, ByteSpan):
            value = Piece(self.source, value)  # type: ignore[assignment]
        elif isinstance(value, str):
            self.text += len(value)
            if self.text > MAX_TEXT:
                raise SafePickleError(f"more than {MAX_TEXT:,} characters of text")
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """What lies above the last mark, taken off."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def mark(self, op: Opcode) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop(self, op: Opcode) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.marked()

    def pop_mark(self, op: Opcode) -> None:
        self.marked()

    def duplicate(self, op: Opcode) -> None:
        self.stack.append(self.stack[-1])

    def put(self, op: Opcode) -> None:
        self.memo[cast(int, op.argument)] = self.stack[-1]

    def memoize(self, op: Opcode) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, op: Opcode) -> None:
        self.stack.append(self.memo[cast(int, op.argument)])

    def tuple_of(self, count: int) -> None:
        if count > len(self.stack):
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def close_tuple(self, op: Opcode) -> None:
        members = tuple(self.marked())
        self.stack.append(members)

    def close_list(self, op: Opcode) -> None:
        members = self.marked()
        self.stack.append(members)

    def close_frozenset(self, op: Opcode) -> None:
        members = frozenset(map(convert_dict_key, self.marked()))
        self.stack.append(members)

    def close_dict(self, op: Opcode) -> None:
        items = self.marked()
        self.stack.append({})
        self._set(items)

    def append(self, op: Opcode) -> None:
        self._extend([self.stack.pop()])

    def appends(self, op: Opcode) -> None:
        self._extend(self.marked())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        else:
            self._spoil("appended to")

    def setitem(self, op: Opcode) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self._set([name, value])

    def setitems(self, op: Opcode) -> None:
        self._set(self.marked())

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise SafePickleError("a dict with a key that has no value")
        if isinstance(target, dict):
            target.update(zip(map(convert_dict_key, items[::2]), items[1::2], strict=True))
        else:
            self._spoil("given items")

    def additems(self, op: Opcode) -> None:
        items, target = self.marked(), self.stack[-1]
        if isinstance(target, set):
            target.update(map(convert_dict_key, items))
        else:
            self._spoil("added to")

    def _spoil(self, what: str) -> None:
        """What nothing can be done with becomes inert, and stays inert."""
        target = self.stack[-1]
        if not isinstance(target, Unreadable):
            self.stack[-1] = Unreadable(f"{type(target).__name__.lower()} that is {what}")

    def named(self, op: Opcode) -> None:
        module, _, name = str(op.argument).partition(" ")
        self.stack.append(Name(module, name))

    def stack_named(self, op: Opcode) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        known = isinstance(name, str) and isinstance(module, str)
        self.stack.append(Name(module, name) if known else Unreadable("a global whose name is no string"))

    def reduce(self, op: Opcode) -> None:
        args, target = self.stack.pop(), self.stack.pop()
        self._call(target, args)

    def newobj_ex(self, op: Opcode) -> None:
        """With keyword arguments, which nothing that we know has."""
        _, _, target = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._call(Unreadable(str(target)) if isinstance(target, Name) else target, ())

    def instance(self, op: Opcode) -> None:
        self.marked()
        self.stack.append(Unreadable(str(op.argument).replace(" ", ".")))

    def obj(self, op: Opcode) -> None:
        args = self.marked()
        target = args.pop(0)
        self._call(target, tuple(args))

    def _call(self, target: Any, args: Any) -> None:
        if isinstance(args, tuple) and isinstance(target, Name):
            self._charge(args)
            self.stack.append(build_call_result(target, args))
        else:
            self.stack.append(target if isinstance(target, Unreadable) else Unreadable("a call of no name"))

    def _charge(self, args: tuple[Any, ...]) -> None:
        """A long argument that is remembered can be handed over again and again, for a byte or two each time."""
        self.work += sum(len(arg) for arg in args if isinstance(arg, str | bytes | list))
        if self.work > FREE_WORK + 2 * self.source.size:
            raise SafePickleError("it hands the same long values over again and again")

    def build(self, op: Opcode) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if hasattr(target, "build"):
            target.build(state)
        else:
            self._spoil("given a state")

    def extension(self, op: Opcode) -> None:
        """A number for a global that only the process that wrote it knows."""
        self.stack.append(Unreadable(f"extension {op.argument!r}"))

    def inert(self, op: Opcode) -> None:
        """A name for bytes that are elsewhere (PERSID), or one out-of-band buffer."""
        self.stack.append(Unreadable(f"{op.name} {op.argument!r:.80}"))

    def persistent(self, op: Opcode) -> None:
        self.stack.append(self._storage(self.stack.pop()))

    def _storage(self, told: Any) -> Storage | Unreadable:
        """`told`: ("storage", torch.LongStorage, "0", "cpu", number of values), as torch.save writes it."""
        if not isinstance(told, tuple) or len(told) != 5 or told[0] != "storage" or self.archive is None:
            return Unreadable("persistent id that is no torch storage")
        _, kind, place, _, count = told
        dtype = STORAGE_DTYPES.get(kind.name) if isinstance(kind, Name) and kind.module == "torch" else None
        if dtype is None:
            return Unreadable(f"storage of type {kind}" if isinstance(kind, Name) else "storage of no type")
        if not isinstance(place, str) or type(count) is not int:
            raise SafePickleError("a torch storage without its place")
        return self._at(place, dtype, count)

    def _at(self, place: str, dtype: str, count: int) -> Storage:
        assert self.archive is not None
        span = self.archive.members.get(f"data/{place}")
        if span is None or not 0 <= count * DTYPE_SIZES[dtype] <= span.length:
            raise SafePickleError(f"a storage of {count:,} values that the archive does not hold")
        return Storage(dtype, Piece(self.archive.source, span))


def _constant(value: Any) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda machine, op: machine.stack.append(value)


def _fresh(made: Callable[[], Any]) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda machine, op: machine.stack.append(made())


def _tuple(count: int) -> Callable[[PickleInterpreter, Opcode], None]:
    return lambda machine, op: machine.tuple_of(count)


def _nothing(machine: PickleInterpreter, op: Opcode) -> None:
    """PROTO, FRAME and STOP: the scanner has seen to them."""


_PUSHED = (
    "INT LONG BININT BININT1 BININT2 LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
STEPS: dict[str, Callable[[PickleInterpreter, Opcode], None]] = {
    **dict.fromkeys(_PUSHED.split(), PickleInterpreter.push),
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), _nothing),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), PickleInterpreter.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), PickleInterpreter.get),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), PickleInterpreter.extension),
    **dict.fromkeys(("PERSID", "NEXT_BUFFER"), PickleInterpreter.inert),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), PickleInterpreter.reduce),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": _fresh(list),
    "EMPTY_DICT": _fresh(dict),
    "EMPTY_SET": _fresh(set),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "TUPLE": PickleInterpreter.close_tuple,
    "LIST": PickleInterpreter.close_list,
    "DICT": PickleInterpreter.close_dict,
    "FROZENSET": PickleInterpreter.close_frozenset,
    "MARK": PickleInterpreter.mark,
    "POP": PickleInterpreter.pop,
    "POP_MARK": PickleInterpreter.pop_mark,
    "DUP": PickleInterpreter.duplicate,
    "MEMOIZE": PickleInterpreter.memoize,
    "APPEND": PickleInterpreter.append,
    "APPENDS": PickleInterpreter.appends,
    "SETITEM": PickleInterpreter.setitem,
    "SETITEMS": PickleInterpreter.setitems,
    "ADDITEMS": PickleInterpreter.additems,
    "GLOBAL": PickleInterpreter.named,
    "STACK_GLOBAL": PickleInterpreter.stack_named,
    "INST": PickleInterpreter.instance,
    "OBJ": PickleInterpreter.obj,
    "NEWOBJ_EX": PickleInterpreter.newobj_ex,
    "BUILD": PickleInterpreter.build,
    "BINPERSID": PickleInterpreter.persistent,
}
