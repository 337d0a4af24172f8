"""numpy arrays, dtypes and scalars, as numpy 1 and 2 pickle them."""

from __future__ import annotations

import re
from math import prod

from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    SPECIAL,
    AbstractBytes,
    AbstractObject,
    AbstractValue,
    GlobalReference,
    RuleViolationError,
    Verifier,
    get_items,
    get_safety_level,
    is_complete,
    is_container,
    parse_sizes,
)

_DTYPE = re.compile(r"(?P<fixed>b1|[iu][1248]|f[248]|c8|c16)|(?P<text>[US])(?P<length>\d{1,8})|(?P<object>O8)")


def verify_dtype(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`numpy.dtype(code, False, True)`. Its byte order is part of the state."""
    if len(args) != 3 or type(args[0]) is not str or args[1] is not False or args[2] is not True:
        raise RuleViolationError("a dtype that numpy does not write")
    match = _DTYPE.fullmatch(args[0])
    if not match:
        raise RuleViolationError(f"the dtype {args[0]!r}")
    facts = {"size": _get_item_size(match), "state": _build_expected_state(match), "object": bool(match["object"])}
    return AbstractObject("dtype", has_state=False, facts=facts)


def _get_item_size(match: re.Match[str]) -> int:
    if match["text"]:
        return int(match["length"]) * (4 if match["text"] == "U" else 1)
    return int(match[0][1:])


def _build_expected_state(match: re.Match[str]) -> list[AbstractValue]:
    """Returns the state that numpy writes for a dtype. Other flags could make bytes pass as object pointers."""
    if match["object"]:
        return [3, "|", None, None, None, -1, -1, 63]
    if match["text"]:
        wide = match["text"] == "U"
        return [3, "<" if wide else "|", None, None, None, _get_item_size(match), 4 if wide else 1, 8 if wide else 0]
    return [3, "|" if match[0] in ("b1", "i1", "u1") else "<", None, None, None, -1, -1, 0]


def verify_dtype_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    if target.has_state or not _equals_exactly(state, target.facts["state"]):
        raise RuleViolationError("a state that does not match its dtype")
    target.has_state = True
    target.level = HARMLESS


def _equals_exactly(state: AbstractValue, expected: list[AbstractValue]) -> bool:
    """Whether all items are equal in value and type: True is not 1 here."""
    return is_container(state, "tuple", len(expected)) and all(
        type(item) is type(value) and item == value for item, value in zip(state.items, expected, strict=True)
    )


def _is_dtype(value: AbstractValue, objects: bool = False) -> bool:
    """Whether it is a dtype of numbers or text; with `objects`, also one of objects."""
    return is_complete(value, "dtype") and (objects or not value.facts["object"])


def verify_reconstruct(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """An empty array that its state fills later: `_reconstruct(numpy.ndarray, (0,), b'b')`."""
    if len(args) != 3 or args[0] != GlobalReference("numpy.ndarray"):
        raise RuleViolationError("an array that is not a numpy.ndarray")
    if not _equals_exactly(args[1], [0]) or not isinstance(args[2], AbstractBytes) or args[2].content != b"b":
        raise RuleViolationError("an array that does not begin empty")
    return AbstractObject("array", has_state=False)


def verify_array_state(verifier: Verifier, target: AbstractObject, state: AbstractValue) -> None:
    """(1, shape, dtype, is Fortran order, bytes or list of objects)."""
    if target.has_state:
        raise RuleViolationError("an array that is filled twice")
    version, shape, kind, fortran, content = get_items(state, 5)
    if type(version) is not int or version != 1 or type(fortran) is not bool or not _is_dtype(kind, objects=True):
        raise RuleViolationError("an invalid array state")
    sizes = parse_sizes(shape)
    _check_content(content, prod(sizes), kind)
    target.has_state = True
    target.facts = {"dtype": kind, "shape": sizes}
    target.level = get_safety_level(content)


def _check_content(content: AbstractValue, count: int, kind: AbstractObject) -> None:
    if kind.facts["object"]:
        fits = is_container(content, "list", count)
    else:
        fits = isinstance(content, AbstractBytes) and content.length == count * kind.facts["size"]
    if not fits:
        raise RuleViolationError("an array whose content does not fit its shape")
    if get_safety_level(content) == SPECIAL:
        raise RuleViolationError("an array of values that are not plain")


def verify_scalar(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`scalar(dtype, bytes)`."""
    if len(args) != 2 or not _is_dtype(args[0]) or not isinstance(args[1], AbstractBytes):
        raise RuleViolationError("an invalid number")
    if args[1].length != args[0].facts["size"]:
        raise RuleViolationError("a number of another size than its dtype")
    return AbstractObject("scalar", HARMLESS)


def verify_from_buffer(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """`_frombuffer(bytes, dtype, shape, order)`, as protocol 5 writes an array."""
    if len(args) != 4 or not isinstance(args[0], AbstractBytes) or not _is_dtype(args[1]) or args[3] not in ("C", "F"):
        raise RuleViolationError("an invalid array")
    sizes = parse_sizes(args[2])
    _check_content(args[0], prod(sizes), args[1])
    return AbstractObject("array", HARMLESS, facts={"dtype": args[1], "shape": sizes})


_CORE = ("numpy._core", "numpy.core")
GLOBALS = {"numpy.ndarray"}
CALL_RULES = {
    "numpy.dtype": verify_dtype,
    **dict.fromkeys((f"{core}.multiarray._reconstruct" for core in _CORE), verify_reconstruct),
    **dict.fromkeys((f"{core}.multiarray.scalar" for core in _CORE), verify_scalar),
    **dict.fromkeys((f"{core}.numeric._frombuffer" for core in _CORE), verify_from_buffer),
}
STATE_RULES = {"dtype": verify_dtype_state, "array": verify_array_state}
