"""Rules for globals of the standard library, and for all objects that are created without arguments."""

from __future__ import annotations

from collections.abc import Callable

from rolloutdeck.safe_pickle.verify.abstract_values import (
    HARMLESS,
    AbstractBytes,
    AbstractContainer,
    AbstractObject,
    AbstractValue,
    LongString,
    RuleViolationError,
    Verifier,
    check_key,
    get_safety_level,
    is_container,
    walk_items,
)


def build_empty_rule(build: Callable[[], AbstractValue]) -> Callable[[Verifier, list[AbstractValue]], AbstractValue]:
    def verify(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
        if args:
            raise RuleViolationError("an object created with arguments")
        return build()

    return verify


def build_new_rule(kind: str) -> Callable[[Verifier, list[AbstractValue]], AbstractValue]:
    """Returns the rule of a class whose objects are created without arguments and then receive their state."""
    return build_empty_rule(lambda: AbstractObject(kind, has_state=False))


def verify_encode(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    """Bytes as protocol 2 writes them: `_codecs.encode(text, 'latin1')`."""
    if len(args) != 2 or args[1] != "latin1":
        raise RuleViolationError("another encoding than latin1")
    text = args[0]
    if type(text) is str and all(letter <= "\xff" for letter in text):
        return AbstractBytes(len(text), text.encode("latin-1"))
    if isinstance(text, LongString) and text.latin:
        return AbstractBytes(text.length)
    raise RuleViolationError("a text that is not latin1")


def verify_set(verifier: Verifier, args: list[AbstractValue]) -> AbstractValue:
    if len(args) != 1 or not is_container(args[0], "list"):
        raise RuleViolationError("a set that is not created from a list")
    members: AbstractContainer = args[0]
    are_keys = all(check_key(verifier.budget, member) for member in walk_items(verifier, members))
    if get_safety_level(members) > HARMLESS or not are_keys:
        raise RuleViolationError("a set of values that are not plain")
    return members.share_as_set()


CALL_RULES = {
    "_codecs.encode": verify_encode,
    "collections.OrderedDict": build_empty_rule(lambda: AbstractContainer("dict")),
    "__builtin__.set": verify_set,
    "builtins.set": verify_set,
    "__builtin__.bytes": build_empty_rule(lambda: AbstractBytes(0, b"")),
}
