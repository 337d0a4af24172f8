"""Reads settings from a Python file. The file is parsed, never executed."""

from __future__ import annotations

import ast
from typing import Any

_CONFIG_SUFFIXES = ("Config", "Arguments", "Trainer")


def parse_python_settings(text: str) -> dict[str, Any]:
    """Returns the module-level constants, and the keyword arguments of calls of `…Config`, `…Arguments`, `…Trainer`.

    The setting `trainer` is the class name of the trainer. `callbacks` also contains callbacks that are created or
    added elsewhere in the file. A literal is returned as its value, another expression as its source. Raises
    ValueError if the text is not valid Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    settings: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            settings[node.targets[0].id] = _parse_value(node.value)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        settings |= _read_arguments(call)
    callbacks = str(settings.get("callbacks", ""))
    added = [source for source in _find_callbacks(calls) if source not in callbacks]
    if added:
        settings["callbacks"] = " ".join([callbacks, *added]).strip()
    return settings


def _find_callbacks(calls: list[ast.Call]) -> list[str]:
    """Returns the sources of callbacks that are added or created: a created one may be passed by a variable."""
    added = [ast.unparse(argument) for call in calls if _get_name(call) == "add_callback" for argument in call.args]
    created = [ast.unparse(call) for call in calls if _get_name(call).endswith("Callback")]
    return added + [source for source in created if source not in added]


def _read_arguments(call: ast.Call) -> dict[str, Any]:
    """Returns the keyword arguments of a call that configures a trainer; {} for another call."""
    name = _get_name(call)
    if not name.endswith(_CONFIG_SUFFIXES):
        return {}
    arguments = {keyword.arg: _parse_value(keyword.value) for keyword in call.keywords if keyword.arg}
    return {**arguments, "trainer": name} if name.endswith("Trainer") else arguments


def _get_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _parse_value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node)
