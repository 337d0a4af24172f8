"""Values that a file does not contain: Python expressions, shell variables, references to the environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

_REFERENCE = re.compile(r"\$(?:\w|[{(@*#?])|`")
_ONLY_REFERENCES = re.compile(r"(?:\$\w+|\$\{[^{}]*\}|\$\([^()]*\)|`[^`]*`|\s)+\Z")


class Expression(str):
    """The source of a Python expression. Its value is known only when the file runs."""

    __slots__ = ()


def is_unresolved(value: object) -> bool:
    """Returns whether the value, or an item of the list, depends on something that its file does not contain."""
    if isinstance(value, (list, tuple)):
        return any(map(is_unresolved, value))
    return isinstance(value, Expression) or (isinstance(value, str) and _REFERENCE.search(value) is not None)


def may_be_empty(value: object) -> bool:
    """Returns whether the text may be empty: it is a Python expression, or only consists of references."""
    return isinstance(value, Expression) or (isinstance(value, str) and _ONLY_REFERENCES.match(value) is not None)


def list_unread_arguments(settings: Mapping[str, Any], names: Iterable[str] = ()) -> list[str]:
    """Returns the groups of settings that could not be read: `Name(**kwargs)` of a call, `${NAME[@]}` of a shell.

    names: only calls whose function has one of these words in its name.
    """
    words = tuple(names)
    groups = [name for name in settings if name.startswith("${") or "(**" in name]
    return [name for name in groups if not words or any(word in name.partition("(")[0] for word in words)]
