"""Runs a pickle's opcodes on a stack of our own, where only lists, dicts, plain values and stand-ins come to be.

No name is imported and nothing of the pickle is called. A stream that no pickle can be (it takes from an empty stack)
raises `Refused`; a global that we do not know becomes an inert `Unreadable`, and so does what is built on it, and what
is done to a value that it can't be done to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rolloutdeck.safe_pickle.errors import Refused
from rolloutdeck.safe_pickle.load.globals import call, key
from rolloutdeck.safe_pickle.load.placeholders import SIZES, STORAGES, Name, Piece, Storage, Unreadable
from rolloutdeck.safe_pickle.stream.opcodes import Limits, Op, Span, scan
from rolloutdeck.safe_pickle.stream.source import Source
from rolloutdeck.safe_pickle.stream.torch_archive import Archive

MAX_TEXT = 1 << 30  # characters of all strings of a pickle together
FREE_WORK = 1 << 20
NUMBERS = frozenset(("BININT", "BININT1", "BININT2", "BINFLOAT"))


def load(source: Source, archive: Archive | None = None, limits: Limits | None = None) -> Any:
    """The value of a pickle. `archive` is where its persistent ids lie. Raises Refused."""
    machine = Machine(source, archive)
    for op in scan(source, limits):
        if op[0] in NUMBERS:  # of tokens and log-probs there are millions
            machine.stack.append(op[1])
        else:
            machine.step(op)
    return machine.result()


class Machine:
    def __init__(self, source: Source, archive: Archive | None) -> None:
        self.source = source
        self.archive = archive
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks under the open marks
        self.memo: dict[int, Any] = {}
        self.text = self.work = 0

    def step(self, op: Op) -> None:
        try:
            STEPS[op.name](self, op)
        except IndexError as error:
            raise Refused(f"{op.name} at {op.at:,} finds too little on the stack") from error
        except KeyError as error:
            raise Refused(f"{op.name} at {op.at:,} is not read") from error

    def result(self) -> Any:
        if len(self.stack) != 1 or self.below:
            raise Refused("it does not end with one value")
        return self.stack[0]

    def push(self, op: Op) -> None:
        value = op.argument
        if isinstance(value, Span):
            value = Piece(self.source, value)  # type: ignore[assignment]
        elif isinstance(value, str):
            self.text += len(value)
            if self.text > MAX_TEXT:
                raise Refused(f"more than {MAX_TEXT:,} characters of text")
        self.stack.append(value)

    def marked(self) -> list[Any]:
        """What lies above the last mark, taken off."""
        above, self.stack = self.stack, self.below.pop()
        return above

    def mark(self, op: Op) -> None:
        self.below.append(self.stack)
        self.stack = []

    def pop(self, op: Op) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.marked()

    def pop_mark(self, op: Op) -> None:
        self.marked()

    def duplicate(self, op: Op) -> None:
        self.stack.append(self.stack[-1])

    def put(self, op: Op) -> None:
        self.memo[cast(int, op.argument)] = self.stack[-1]

    def memoize(self, op: Op) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, op: Op) -> None:
        self.stack.append(self.memo[cast(int, op.argument)])

    def tuple_of(self, count: int) -> None:
        if count > len(self.stack):
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def close_tuple(self, op: Op) -> None:
        members = tuple(self.marked())
        self.stack.append(members)

    def close_list(self, op: Op) -> None:
        members = self.marked()
        self.stack.append(members)

    def close_frozenset(self, op: Op) -> None:
        members = frozenset(map(key, self.marked()))
        self.stack.append(members)

    def close_dict(self, op: Op) -> None:
        items = self.marked()
        self.stack.append({})
        self._set(items)

    def append(self, op: Op) -> None:
        self._extend([self.stack.pop()])

    def appends(self, op: Op) -> None:
        self._extend(self.marked())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        else:
            self._spoil("appended to")

    def setitem(self, op: Op) -> None:
        value, name = self.stack.pop(), self.stack.pop()
        self._set([name, value])

    def setitems(self, op: Op) -> None:
        self._set(self.marked())

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise Refused("a dict with a key that has no value")
        if isinstance(target, dict):
            target.update(zip(map(key, items[::2]), items[1::2], strict=True))
        else:
            self._spoil("given items")

    def additems(self, op: Op) -> None:
        items, target = self.marked(), self.stack[-1]
        if isinstance(target, set):
            target.update(map(key, items))
        else:
            self._spoil("added to")

    def _spoil(self, what: str) -> None:
        """What nothing can be done with becomes inert, and stays inert."""
        target = self.stack[-1]
        if not isinstance(target, Unreadable):
            self.stack[-1] = Unreadable(f"{type(target).__name__.lower()} that is {what}")

    def named(self, op: Op) -> None:
        module, _, name = str(op.argument).partition(" ")
        self.stack.append(Name(module, name))

    def stack_named(self, op: Op) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        known = isinstance(name, str) and isinstance(module, str)
        self.stack.append(Name(module, name) if known else Unreadable("a global whose name is no string"))

    def reduce(self, op: Op) -> None:
        args, target = self.stack.pop(), self.stack.pop()
        self._call(target, args)

    def newobj_ex(self, op: Op) -> None:
        """With keyword arguments, which nothing that we know has."""
        _, _, target = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self._call(Unreadable(str(target)) if isinstance(target, Name) else target, ())

    def instance(self, op: Op) -> None:
        self.marked()
        self.stack.append(Unreadable(str(op.argument).replace(" ", ".")))

    def obj(self, op: Op) -> None:
        args = self.marked()
        target = args.pop(0)
        self._call(target, tuple(args))

    def _call(self, target: Any, args: Any) -> None:
        if isinstance(args, tuple) and isinstance(target, Name):
            self._charge(args)
            self.stack.append(call(target, args))
        else:
            self.stack.append(target if isinstance(target, Unreadable) else Unreadable("a call of no name"))

    def _charge(self, args: tuple[Any, ...]) -> None:
        """A long argument that is remembered can be handed over again and again, for a byte or two each time."""
        self.work += sum(len(arg) for arg in args if isinstance(arg, str | bytes | list))
        if self.work > FREE_WORK + 2 * self.source.size:
            raise Refused("it hands the same long values over again and again")

    def build(self, op: Op) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if hasattr(target, "build"):
            target.build(state)
        else:
            self._spoil("given a state")

    def extension(self, op: Op) -> None:
        """A number for a global that only the process that wrote it knows."""
        self.stack.append(Unreadable(f"extension {op.argument!r}"))

    def inert(self, op: Op) -> None:
        """A name for bytes that are elsewhere (PERSID), or one out-of-band buffer."""
        self.stack.append(Unreadable(f"{op.name} {op.argument!r:.80}"))

    def persistent(self, op: Op) -> None:
        self.stack.append(self._storage(self.stack.pop()))

    def _storage(self, told: Any) -> Storage | Unreadable:
        """`told`: ("storage", torch.LongStorage, "0", "cpu", number of values), as torch.save writes it."""
        if not isinstance(told, tuple) or len(told) != 5 or told[0] != "storage" or self.archive is None:
            return Unreadable("persistent id that is no torch storage")
        _, kind, place, _, count = told
        dtype = STORAGES.get(kind.name) if isinstance(kind, Name) and kind.module == "torch" else None
        if dtype is None:
            return Unreadable(f"storage of type {kind}" if isinstance(kind, Name) else "storage of no type")
        if not isinstance(place, str) or type(count) is not int:
            raise Refused("a torch storage without its place")
        return self._at(place, dtype, count)

    def _at(self, place: str, dtype: str, count: int) -> Storage:
        assert self.archive is not None
        span = self.archive.members.get(f"data/{place}")
        if span is None or not 0 <= count * SIZES[dtype] <= span.length:
            raise Refused(f"a storage of {count:,} values that the archive does not hold")
        return Storage(dtype, Piece(self.archive.source, span))


def _constant(value: Any) -> Callable[[Machine, Op], None]:
    return lambda machine, op: machine.stack.append(value)


def _fresh(made: Callable[[], Any]) -> Callable[[Machine, Op], None]:
    return lambda machine, op: machine.stack.append(made())


def _tuple(count: int) -> Callable[[Machine, Op], None]:
    return lambda machine, op: machine.tuple_of(count)


def _nothing(machine: Machine, op: Op) -> None:
    """PROTO, FRAME and STOP: the scanner has seen to them."""


_PUSHED = (
    "INT LONG BININT BININT1 BININT2 LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 "
    "STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
)
STEPS: dict[str, Callable[[Machine, Op], None]] = {
    **dict.fromkeys(_PUSHED.split(), Machine.push),
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), _nothing),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), Machine.get),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), Machine.extension),
    **dict.fromkeys(("PERSID", "NEXT_BUFFER"), Machine.inert),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), Machine.reduce),
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
    "TUPLE": Machine.close_tuple,
    "LIST": Machine.close_list,
    "DICT": Machine.close_dict,
    "FROZENSET": Machine.close_frozenset,
    "MARK": Machine.mark,
    "POP": Machine.pop,
    "POP_MARK": Machine.pop_mark,
    "DUP": Machine.duplicate,
    "MEMOIZE": Machine.memoize,
    "APPEND": Machine.append,
    "APPENDS": Machine.appends,
    "SETITEM": Machine.setitem,
    "SETITEMS": Machine.setitems,
    "ADDITEMS": Machine.additems,
    "GLOBAL": Machine.named,
    "STACK_GLOBAL": Machine.stack_named,
    "INST": Machine.instance,
    "OBJ": Machine.obj,
    "NEWOBJ_EX": Machine.newobj_ex,
    "BUILD": Machine.build,
    "BINPERSID": Machine.persistent,
}
