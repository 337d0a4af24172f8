"""What a pickle's opcodes would build, as far as it must be known to judge it: no values, only their shapes.

Numbers, None and short strings stand for themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSpan

MAX_SHORT_STRING = 64  # characters; a longer string is known by its length
MAX_DEPTH = 200
MAX_WEIGHT = 1 << 32  # values and characters, each counted as often as it is reached

HARMLESS, SPECIAL, UNKNOWN = 0, 1, 2  # plain data; something with its own place; something that may not be loaded

AbstractValue = Any
_NOTHING: list[AbstractValue] = []


class RuleViolationError(Exception):
    """Nothing that torch, numpy or verl would have written here."""


class GlobalReference(NamedTuple):
    """A function or class, by name. It may stand only where a rule asks for it."""

    name: str


class LongString(NamedTuple):
    """A string of more than `MAX_SHORT_STRING` characters."""

    length: int
    latin: bool


@dataclass(frozen=True, slots=True)
class AbstractBytes:
    """A byte string: in memory when short, else in the source; neither when it was written as text."""

    length: int
    content: bytes | None = None
    span: ByteSpan | None = None


class AbstractContainer:
    """A list, tuple, set or dict (`items` are then key, value, key, value…).

    Once it is inside another or was handed to a call it is `sealed`: picklers finish a container before they use it,
    so that whoever changes it later wants to change what was already judged. It also rules out cycles.
    """

    __slots__ = ("depth", "items", "kind", "level", "sealed", "weight")

    def __init__(self, kind: str, items: Sequence[AbstractValue] = ()) -> None:
        self.kind = kind
        self.items = _NOTHING
        self.level = HARMLESS
        self.depth = self.weight = 1
        self.sealed = False
        if items:
            self.extend(items)

    def extend(self, items: Iterable[AbstractValue]) -> None:
        """Raises RuleViolationError when sealed, SafePickleError when it grows too deep or too large."""
        if self.sealed:
            raise RuleViolationError("it changes a container that was already used")
        if self.items is _NOTHING:
            self.items = []
        for item in items:
            self.items.append(item)
            if isinstance(item, (str, int, float)) or item is None:
                self.weight += 1
                continue
            self._hold(item)
        if self.depth > MAX_DEPTH or self.weight > MAX_WEIGHT:
            raise SafePickleError(
                f"it is nested more than {MAX_DEPTH} deep, or unfolds to more than {MAX_WEIGHT:,} values"
            )

    def _hold(self, item: AbstractValue) -> None:
        if item is self:
            raise RuleViolationError("it changes a container that was already used")
        self.level = max(self.level, get_safety_level(item))
        if isinstance(item, AbstractContainer):
            item.sealed = True
            self.depth = max(self.depth, item.depth + 1)
            self.weight += item.weight
        else:
            self.weight += item.length if isinstance(item, LongString) else 1

    def spend(self) -> None:
        """Lets go of what a call took, since millions of rows have such; used again, it is nothing that fits."""
        self.kind, self.items, self.sealed = "spent", _NOTHING, True

    def fields(self) -> dict[str, AbstractValue]:
        """A dict with short strings as keys, each once. Raises RuleViolationError when it is another."""
        keys = self.items[::2]
        if self.kind != "dict" or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
            raise RuleViolationError("a state that is no dict of names")
        return dict(zip(keys, self.items[1::2], strict=True))


_NO_FACTS: dict[str, AbstractValue] = {}


class AbstractObject:
    """What a call builds. `facts` say what later rules need of it; `level` is UNKNOWN when it holds what may not be.

    `built` is False until it was given its state.
    """

    __slots__ = ("built", "facts", "kind", "level")

    def __init__(
        self, kind: str, level: int = SPECIAL, built: bool = True, facts: dict[str, AbstractValue] | None = None
    ) -> None:
        self.kind = kind
        self.level = level
        self.built = built
        self.facts = facts or _NO_FACTS


def build_unknown_object() -> AbstractObject:
    return AbstractObject("unknown", UNKNOWN)


def get_safety_level(value: AbstractValue) -> int:
    if isinstance(value, (AbstractContainer, AbstractObject)):
        return value.level
    return SPECIAL if isinstance(value, GlobalReference) else HARMLESS


def is_count(value: AbstractValue) -> bool:
    """A whole number from 0, as sizes and positions are."""
    return type(value) is int and 0 <= value < 1 << 62


def parse_sizes(value: AbstractValue, kinds: tuple[str, ...] = ("tuple",)) -> list[int]:
    """Sizes or strides of at most 32 dimensions. Raises RuleViolationError."""
    if not isinstance(value, AbstractContainer) or value.kind not in kinds or len(value.items) > 32:
        raise RuleViolationError("a shape that is none")
    if not all(is_count(item) for item in value.items):
        raise RuleViolationError("a shape that is none")
    return value.items


def multiply_sizes(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def is_dict_key(value: AbstractValue) -> bool:
    """What a pickler writes as a key, and what hashes without running anything of its own."""
    if isinstance(value, AbstractContainer):
        return value.kind == "tuple" and all(map(is_dict_key, value.items))
    if isinstance(value, AbstractObject):
        return value.kind in ("scalar", "range") and value.level == HARMLESS
    return isinstance(value, (str, int, float, LongString, AbstractBytes)) or value is None
