"""numpy arrays, dtypes and scalars, as numpy 1 and 2 pickle them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    SPECIAL,
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    get_safety_level,
    multiply_sizes,
    parse_sizes,
)

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Verifier

_DTYPE = re.compile(r"(?P<fixed>b1|[iu][1248]|f[248]|c8|c16)|(?P<text>[US])(?P<length>\d{1,8})|(?P<object>O8)")


def dtype(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`numpy.dtype(code, False, True)`; its byte order comes with the state."""
    if len(args) != 3 or type(args[0]) is not str or args[1] is not False or args[2] is not True:
        raise RuleViolationError("a dtype as numpy does not write one")
    match = _DTYPE.fullmatch(args[0])
    if not match:
        raise RuleViolationError(f"the dtype {args[0]!r}")
    facts = {"size": _item_size(match), "state": _state(match), "object": bool(match["object"])}
    return AbstractObject("dtype", built=False, facts=facts)


def _item_size(match: re.Match[str]) -> int:
    if match["text"]:
        return int(match["length"]) * (4 if match["text"] == "U" else 1)
    return int(match[0][1:])


def _state(match: re.Match[str]) -> list[AbstractValue]:
    """The state that belongs to a dtype. Flags that do not would let bytes pass for object pointers."""
    if match["object"]:
        return [3, "|", None, None, None, -1, -1, 63]
    if match["text"]:
        wide = match["text"] == "U"
        return [3, "<" if wide else "|", None, None, None, _item_size(match), 4 if wide else 1, 8 if wide else 0]
    return [3, "|" if match[0] in ("b1", "i1", "u1") else "<", None, None, None, -1, -1, 0]


def dtype_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    if thing.built or not _exactly(state, thing.facts["state"]):
        raise RuleViolationError("a state that is not that of its dtype")
    thing.built = True
    thing.level = HARMLESS


def _exactly(state: AbstractValue, wanted: list[AbstractValue]) -> bool:
    """Equal in value and type: True is no 1 here."""
    if not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != len(wanted):
        return False
    return all(type(one) is type(other) and one == other for one, other in zip(state.items, wanted, strict=True))


def _is_dtype(value: AbstractValue, objects: bool = False) -> bool:
    """A dtype of numbers or text; of objects only where asked for."""
    if not isinstance(value, AbstractObject) or value.kind != "dtype" or not value.built:
        return False
    return objects or not value.facts["object"]


def reconstruct(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """An empty array, which its state then fills: `_reconstruct(numpy.ndarray, (0,), b'b')`."""
    if len(args) != 3 or args[0] != GlobalReference("numpy.ndarray"):
        raise RuleViolationError("an array that is no numpy.ndarray")
    if not _exactly(args[1], [0]) or not isinstance(args[2], AbstractBytes) or args[2].content != b"b":
        raise RuleViolationError("an array that does not begin empty")
    return AbstractObject("array", built=False)


def array_state(judge: Verifier, thing: AbstractObject, state: AbstractValue) -> None:
    """(1, shape, dtype, is Fortran order, bytes or list of objects)."""
    if thing.built:
        raise RuleViolationError("an array that is filled twice")
    if not isinstance(state, AbstractContainer) or state.kind != "tuple" or len(state.items) != 5:
        raise RuleViolationError("an array's state that is none")
    version, shape, kind, fortran, content = state.items
    if type(version) is not int or version != 1 or type(fortran) is not bool or not _is_dtype(kind, objects=True):
        raise RuleViolationError("an array's state that is none")
    _check_content(content, multiply_sizes(parse_sizes(shape)), kind)
    thing.built = True
    thing.facts = {"dtype": kind, "shape": parse_sizes(shape)}
    thing.level = get_safety_level(content)


def _check_content(content: AbstractValue, count: int, kind: AbstractObject) -> None:
    if kind.facts["object"]:
        whole = isinstance(content, AbstractContainer) and content.kind == "list" and len(content.items) == count
    else:
        whole = isinstance(content, AbstractBytes) and content.length == count * kind.facts["size"]
    if not whole:
        raise RuleViolationError("an array whose content does not fit its shape")
    if get_safety_level(content) == SPECIAL:
        raise RuleViolationError("an array of what is no plain value")


def scalar(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`scalar(dtype, bytes)`."""
    if len(args) != 2 or not _is_dtype(args[0]) or not isinstance(args[1], AbstractBytes):
        raise RuleViolationError("a number that is none")
    if args[1].length != args[0].facts["size"]:
        raise RuleViolationError("a number of another size than its dtype")
    return AbstractObject("scalar", HARMLESS)


def from_buffer(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_frombuffer(bytes, dtype, shape, order)`, as protocol 5 writes an array."""
    if len(args) != 4 or not isinstance(args[0], AbstractBytes) or not _is_dtype(args[1]) or args[3] not in ("C", "F"):
        raise RuleViolationError("an array that is none")
    _check_content(args[0], multiply_sizes(parse_sizes(args[2])), args[1])
    return AbstractObject("array", HARMLESS, facts={"dtype": args[1], "shape": parse_sizes(args[2])})


_CORE = ("numpy._core", "numpy.core")
ARRAY_GLOBALS = {"numpy.ndarray"}
ARRAY_CALL_RULES = {
    "numpy.dtype": dtype,
    **dict.fromkeys((f"{core}.multiarray._reconstruct" for core in _CORE), reconstruct),
    **dict.fromkeys((f"{core}.multiarray.scalar" for core in _CORE), scalar),
    **dict.fromkeys((f"{core}.numeric._frombuffer" for core in _CORE), from_buffer),
}
ARRAY_STATE_RULES = {"dtype": dtype_state, "array": array_state}
