"""Globals of the standard library: sets, byte strings of protocol 2, ordered dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    AbstractBytes,
    AbstractContainer,
    AbstractValue,
    LongString,
    RuleViolationError,
    get_safety_level,
    is_dict_key,
)

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Verifier


def encode(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """Bytes as protocol 2 writes them: `_codecs.encode(text, 'latin1')`."""
    if len(args) != 2 or args[1] != "latin1":
        raise RuleViolationError("another encoding than latin1")
    text = args[0]
    if type(text) is str and all(letter <= "\xff" for letter in text):
        return AbstractBytes(len(text), text.encode("latin-1"))
    if isinstance(text, LongString) and text.latin:
        return AbstractBytes(text.length)
    raise RuleViolationError("a text that is not latin1")


def empty_bytes(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if args:
        raise RuleViolationError("bytes made of something")
    return AbstractBytes(0, b"")


def ordered(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if args:
        raise RuleViolationError("an ordered dict made of something")
    return AbstractContainer("dict")


def unordered(judge: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if len(args) != 1 or not isinstance(args[0], AbstractContainer) or args[0].kind != "list":
        raise RuleViolationError("a set made of no list")
    if get_safety_level(args[0]) > HARMLESS or not all(map(is_dict_key, args[0].items)):
        raise RuleViolationError("a set of what is no plain value")
    return AbstractContainer("set", args[0].items)


STDLIB_CALL_RULES = {
    "_codecs.encode": encode,
    "collections.OrderedDict": ordered,
    "__builtin__.set": unordered,
    "builtins.set": unordered,
    "__builtin__.bytes": empty_bytes,
}
