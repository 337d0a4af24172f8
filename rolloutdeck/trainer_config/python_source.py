"""Settings out of a Python file, which is read and never run."""

from __future__ import annotations

import ast
from typing import Any

_SETTING_UP = ("Config", "Arguments", "Trainer")


def parse_python_settings(text: str) -> dict[str, Any]:
    """The file's constants, `name = value` at its top, and what it hands to calls of names that end with `Config`,
    `Arguments` or `Trainer`. `trainer` is the name of the trainer it makes; callbacks that are added or
    made count as handed.

    A value is itself where it is a literal, else its source. Raises ValueError where the text is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = _value(node.value)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        found |= _handed(call)
    told = str(found.get("callbacks", ""))
    added = [source for source in _callbacks(calls) if source not in told]
    if added:
        found["callbacks"] = " ".join([told, *added]).strip()
    return found


def _callbacks(calls: list[ast.Call]) -> list[str]:
    """Those that are added, and those that are made: they may be handed over by a name."""
    added = [ast.unparse(argument) for call in calls if _name(call) == "add_callback" for argument in call.args]
    made = [ast.unparse(call) for call in calls if _name(call).endswith("Callback")]
    return added + [one for one in made if one not in added]


def _handed(call: ast.Call) -> dict[str, Any]:
    name = _name(call)
    if not name.endswith(_SETTING_UP):
        return {}
    handed = {word.arg: _value(word.value) for word in call.keywords if word.arg}
    return {**handed, "trainer": name} if name.endswith("Trainer") else handed


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node)
