"""Globals of the standard library: sets, byte strings of protocol 2, ordered dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.safe_pickle.verify.abstract_values import HARMLESS, Box, Data, Text, Unfit, Value, is_key, level_of

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.verify.types import Judge


def encode(judge: Judge, args: list[Value]) -> Value:
    """Bytes as protocol 2 writes them: `_codecs.encode(text, 'latin1')`."""
    if len(args) != 2 or args[1] != "latin1":
        raise Unfit("another encoding than latin1")
    text = args[0]
    if type(text) is str and all(letter <= "\xff" for letter in text):
        return Data(len(text), text.encode("latin-1"))
    if isinstance(text, Text) and text.latin:
        return Data(text.length)
    raise Unfit("a text that is not latin1")


def empty_bytes(judge: Judge, args: list[Value]) -> Value:
    if args:
        raise Unfit("bytes made of something")
    return Data(0, b"")


def ordered(judge: Judge, args: list[Value]) -> Value:
    if args:
        raise Unfit("an ordered dict made of something")
    return Box("dict")


def unordered(judge: Judge, args: list[Value]) -> Value:
    if len(args) != 1 or not isinstance(args[0], Box) or args[0].kind != "list":
        raise Unfit("a set made of no list")
    if level_of(args[0]) > HARMLESS or not all(map(is_key, args[0].items)):
        raise Unfit("a set of what is no plain value")
    return Box("set", args[0].items)


CALLS = {
    "_codecs.encode": encode,
    "collections.OrderedDict": ordered,
    "__builtin__.set": unordered,
    "builtins.set": unordered,
    "__builtin__.bytes": empty_bytes,
}
