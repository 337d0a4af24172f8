"""Abstract values: what a pickle's opcodes would build, as far as the verifier and its rules must know it.

They contain shapes instead of data. Numbers, None and short strings represent themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from rolloutdeck.safe_pickle.errors import SafePickleError
from rolloutdeck.safe_pickle.stream import ByteSpan, TorchArchive

MAX_SHORT_STRING = 64  # characters; of a longer string only the length is recorded
MAX_DEPTH = 200
MAX_WEIGHT = 1 << 32  # values and characters, each counted as often as it is reached
MAX_KEY_VALUES = 1 << 20  # of a tuple that is a key
FREE_KEY_VALUES = 1000  # of a key; hashing more counts as work
HASHED_PER_VALUE = 4  # values of a key whose hash takes as much time as one value
FREE_WORK = 1 << 22  # values that rules may walk, besides twice the size of the pickle
FREE_TENSOR_BYTES = 16 << 30  # of all tensors of a file, also of a small one
TENSOR_BYTES_PER_BYTE = 64  # of all tensors of a file, for each of its bytes

HARMLESS, SPECIAL, UNKNOWN = 0, 1, 2  # plain data; allowed only where a rule expects it; not loadable

AbstractValue = Any
_NO_ITEMS: list[AbstractValue] = []


class RuleViolationError(Exception):
    """Torch, numpy and verl would not have written this here."""


class WorkBudget:
    """Limits what a file can make its readers do. The archives inside a file share its budget.

    `remaining`: values that all rules may still walk. A pickle can pass a memoized large value to a call again for 1 or
    2 bytes; a value in a real file is walked once or twice. `tensor_bytes`: the size of all tensors, each counted in
    full, because tensors can share a storage, and a trainer that copies a batch copies each of them.
    """

    def __init__(self, pickle_size: int, file_size: int) -> None:
        self.remaining = FREE_WORK + 2 * pickle_size
        self.max_tensor_bytes = max(FREE_TENSOR_BYTES, TENSOR_BYTES_PER_BYTE * file_size)
        self.tensor_bytes = 0

    def spend(self, values: int) -> None:
        """Raises SafePickleError if nothing is left."""
        self.remaining -= values
        if self.remaining < 0:
            raise SafePickleError("it passes the same large values to calls again and again")

    def add_tensor(self, length: int) -> None:
        """Raises RuleViolationError if all tensors together are too large."""
        self.tensor_bytes += length
        if self.tensor_bytes > self.max_tensor_bytes:
            raise RuleViolationError(f"its tensors would take more than {self.max_tensor_bytes:,} bytes as copies")


class Verifier(Protocol):
    """The part of `PickleVerifier` that the rules use. `storages`: key -> type and number of elements."""

    archive: TorchArchive | None
    budget: WorkBudget
    storages: dict[str, tuple[str, int]]

    def verify_embedded(self, data: AbstractBytes) -> AbstractValue: ...


class GlobalReference(NamedTuple):
    """A function or class, by name. It is allowed only where a rule expects it."""

    name: str


class LongString(NamedTuple):
    """A string of more than `MAX_SHORT_STRING` characters."""

    length: int
    latin: bool


@dataclass(frozen=True, slots=True)
class AbstractBytes:
    """A byte string. A short one is in `content`, a long one at `span` in the source. One that was written as text has
    neither."""

    length: int
    content: bytes | None = None
    span: ByteSpan | None = None


class AbstractContainer:
    """A list, tuple, set or dict (`items` are then key, value, key, value…).

    It is `sealed` as soon as it is part of another container or an argument of a call. Picklers finish a container
    before they use it, so a later change is an attempt to alter a value that was already verified. Sealing also
    excludes cycles. `key_values`: how many values are hashed if it is a key, each counted as often as it is reached;
    more than MAX_KEY_VALUES if it can't be a key.
    """

    __slots__ = ("depth", "items", "key_values", "kind", "level", "sealed", "weight")

    def __init__(self, kind: str, items: Sequence[AbstractValue] = ()) -> None:
        self.kind = kind
        self.items = _NO_ITEMS
        self.level = HARMLESS
        self.depth = self.weight = 1
        self.key_values = 1 if kind == "tuple" else MAX_KEY_VALUES + 1
        self.sealed = False
        if items:
            self.extend(items)

    def extend(self, items: Iterable[AbstractValue]) -> None:
        """Adds items. Raises RuleViolationError if it is sealed, SafePickleError if it is too deep or too large."""
        if self.sealed:
            raise RuleViolationError("it changes a container that was already used")
        if self.items is _NO_ITEMS:
            self.items = []
        count = len(self.items)
        for item in items:
            self.items.append(item)
            if isinstance(item, (str, int, float)) or item is None:
                self.weight += 1
                continue
            self._count_item(item)
        self.key_values += len(self.items) - count
        if self.depth > MAX_DEPTH or self.weight > MAX_WEIGHT:
            message = f"it is nested more than {MAX_DEPTH} deep, or unfolds to more than {MAX_WEIGHT:,} values"
            raise SafePickleError(message)

    def _count_item(self, item: AbstractValue) -> None:
        if item is self:
            raise RuleViolationError("it changes a container that was already used")
        self.level = max(self.level, get_safety_level(item))
        if isinstance(item, AbstractContainer):
            item.sealed = True
            self.depth = max(self.depth, item.depth + 1)
            self.weight += item.weight
            self.key_values += item.key_values
        else:
            self.weight += item.length if isinstance(item, LongString) else 1
            self.key_values += 0 if is_dict_key(item) else MAX_KEY_VALUES

    def release_items(self) -> None:
        """Frees the arguments of a call, because there are millions of them. No rule accepts the container again."""
        self.kind, self.items, self.sealed = "spent", _NO_ITEMS, True

    def share_as_set(self) -> AbstractContainer:
        """Returns a set of the same items, without a copy. The list is an argument of a call, so it can't change."""
        result = AbstractContainer("set")
        result.items, result.level, result.depth, result.weight = self.items, self.level, self.depth, self.weight
        self.sealed = result.sealed = True
        return result

    def fields(self) -> dict[str, AbstractValue]:
        """Returns a dict with short strings as keys, each once. Raises RuleViolationError if it is anything else."""
        keys = self.items[::2]
        if self.kind != "dict" or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
            raise RuleViolationError("a state that is not a dict of names")
        return dict(zip(keys, self.items[1::2], strict=True))


_NO_FACTS: dict[str, AbstractValue] = {}


class AbstractObject:
    """The result of a call. `facts` are the properties that later rules need.

    `level` is UNKNOWN if it contains something that is not allowed. `has_state` is False until BUILD sets its state.
    """

    __slots__ = ("facts", "has_state", "kind", "level")

    def __init__(
        self, kind: str, level: int = SPECIAL, has_state: bool = True, facts: dict[str, AbstractValue] | None = None
    ) -> None:
        self.kind = kind
        self.level = level
        self.has_state = has_state
        self.facts = facts or _NO_FACTS


def build_unknown_object() -> AbstractObject:
    return AbstractObject("unknown", UNKNOWN)


def get_safety_level(value: AbstractValue) -> int:
    if isinstance(value, (AbstractContainer, AbstractObject)):
        return value.level
    return SPECIAL if isinstance(value, GlobalReference) else HARMLESS


def is_container(value: AbstractValue, kind: str, length: int | None = None) -> bool:
    """Whether it is a container of this kind, and of this number of items if it is given."""
    return isinstance(value, AbstractContainer) and value.kind == kind and length in (None, len(value.items))


def get_items(value: AbstractValue, length: int) -> list[AbstractValue]:
    """Returns the items of a tuple of this length; None for each if it is anything else."""
    items: list[AbstractValue] = value.items if is_container(value, "tuple", length) else [None] * length
    return items


def is_complete(value: AbstractValue, *kinds: str) -> bool:
    """Whether it is an object of one of these kinds that has its state."""
    return isinstance(value, AbstractObject) and value.kind in kinds and value.has_state


def get_fields(verifier: Verifier, value: AbstractValue, message: str) -> dict[str, AbstractValue]:
    """Returns the fields of a container. Raises RuleViolationError, with `message` if it is something else."""
    if not isinstance(value, AbstractContainer):
        raise RuleViolationError(message)
    verifier.budget.spend(len(value.items))
    return value.fields()


def walk_items(verifier: Verifier, value: AbstractContainer) -> list[AbstractValue]:
    """Returns the items of a container of any length. A rule that looks at each of them must call this."""
    verifier.budget.spend(len(value.items))
    return value.items


def add_tensor_copy(verifier: Verifier, tensor: AbstractObject) -> None:
    """Counts the bytes of a tensor for each field that it is in, but the first: they count when it is built."""
    if "in_field" in tensor.facts:
        verifier.budget.add_tensor(tensor.facts["bytes"])
    tensor.facts["in_field"] = True


def is_count(value: AbstractValue) -> bool:
    """Whether it is an integer of at least 0 that can be a size or a position."""
    return type(value) is int and 0 <= value < 1 << 62


def parse_sizes(value: AbstractValue, kinds: tuple[str, ...] = ("tuple",)) -> list[int]:
    """Returns sizes or strides of at most 32 dimensions. Raises RuleViolationError."""
    if not is_shape(value, kinds):
        raise RuleViolationError("an invalid shape")
    sizes: list[int] = value.items
    return sizes


def is_shape(value: AbstractValue, kinds: tuple[str, ...]) -> bool:
    """Whether it is a container of these kinds with at most 32 sizes or strides."""
    is_sequence = isinstance(value, AbstractContainer) and value.kind in kinds and len(value.items) <= 32
    return is_sequence and all(map(is_count, value.items))


def is_dict_key(value: AbstractValue) -> bool:
    """Whether a pickler writes it as a key, and hashing it takes no time and runs no code of the pickle."""
    if isinstance(value, AbstractContainer):
        return value.kind == "tuple" and value.key_values <= MAX_KEY_VALUES
    if isinstance(value, AbstractObject):
        return value.kind in ("scalar", "range") and value.level == HARMLESS
    return isinstance(value, (str, int, float, LongString, AbstractBytes)) or value is None


def check_key(budget: WorkBudget, value: AbstractValue) -> bool:
    """Returns `is_dict_key(value)`. A long key is work, because it is hashed each time. Raises SafePickleError."""
    if not is_dict_key(value):
        return False
    if isinstance(value, AbstractContainer) and value.key_values > FREE_KEY_VALUES:
        budget.spend(value.key_values // HASHED_PER_VALUE)
    return True
