"""Reads settings from a Python file. The file is parsed, never executed."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rolloutdeck.trainer_config.unresolved import Expression

_CONFIG_SUFFIXES = ("Config", "Arguments", "Trainer")


def parse_python_settings(text: str) -> dict[str, Any]:
    """Returns the module-level constants, and the keyword arguments of calls of `…Config`, `…Arguments`, `…Trainer`.

    The setting `trainer` is the class name of the trainer, and `Name()` has the arguments of a call of that name.
    `callbacks` also contains callbacks that are created or added elsewhere in the file. A literal, and a constant of
    the module, is returned as its value, another expression as an `Expression`. `Name(**source)` is there if a call has
    keyword arguments that can't be read. Raises ValueError if the text is not valid Python.
    """
    try:
        tree = ast.parse(text)
        return _read_settings(tree)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _read_settings(tree: ast.Module) -> dict[str, Any]:
    nodes = list(ast.walk(tree))
    variables = _Variables(nodes)
    settings: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            settings[node.targets[0].id] = variables.parse_value(node.value)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for call in calls:
        settings |= _read_arguments(call, variables)
    settings |= _read_attributes(nodes, variables)
    callbacks = str(settings.get("callbacks", ""))
    added = [source for source in _find_callbacks(calls) if source not in callbacks]
    if added:
        settings["callbacks"] = Expression(" ".join([callbacks, *added]).strip())
    return settings


class _Variables:
    """The values of names that the file binds only once, so that the place of a use does not matter."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self._bound = Counter(filter(None, map(_get_bound_name, nodes)))
        names = [node for node in nodes if isinstance(node, ast.Name)]
        self._loads = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        assignments = [node for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1]
        self._values = {node.targets[0].id: node.value for node in assignments if isinstance(node.targets[0], ast.Name)}

    def find(self, node: ast.expr) -> ast.expr:
        """Returns the expression that a name stands for; `node` itself if it is not such a name."""
        if isinstance(node, ast.Name) and self._bound[node.id] == 1:
            return self._values.get(node.id, node)
        return node

    def parse_value(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(self.find(node))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return Expression(ast.unparse(node))

    def read_mapping(self, node: ast.expr) -> dict[str, Any] | None:
        """Returns the items of a dict that the file writes out and uses only here; None if they are not known."""
        value = self.find(node)
        if isinstance(node, ast.Name) and (value is node or self._loads[node.id] > 1):
            return None
        if isinstance(value, ast.Call) and _get_name(value) == "dict" and not value.args:
            keywords = value.keywords
            return {str(each.arg): self.parse_value(each.value) for each in keywords} if _all_named(keywords) else None
        if not isinstance(value, ast.Dict) or not all(isinstance(key, ast.Constant) for key in value.keys):
            return None
        pairs = zip(value.keys, value.values, strict=True)
        return {str(key.value): self.parse_value(item) for key, item in pairs if isinstance(key, ast.Constant)}


def _all_named(keywords: list[ast.keyword]) -> bool:
    return all(keyword.arg for keyword in keywords)


def _get_bound_name(node: ast.AST) -> str | None:
    """Returns the name that this node gives a value to."""
    if isinstance(node, ast.Name):
        return None if isinstance(node.ctx, ast.Load) else node.id
    if isinstance(node, ast.alias):
        return node.asname or node.name
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    return node.arg if isinstance(node, ast.arg) else None


def _find_callbacks(calls: list[ast.Call]) -> list[str]:
    """Returns the sources of callbacks that are added or created: a created one may be passed by a variable."""
    added = [ast.unparse(argument) for call in calls if _get_name(call) == "add_callback" for argument in call.args]
    created = [ast.unparse(call) for call in calls if _get_name(call).endswith("Callback")]
    return added + [source for source in created if source not in added]


def _read_arguments(call: ast.Call, variables: _Variables) -> dict[str, Any]:
    """Returns the keyword arguments of a call that configures a trainer; {} for another call."""
    name = _get_name(call)
    if not name.endswith(_CONFIG_SUFFIXES):
        return {}
    arguments: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg:
            arguments[keyword.arg] = variables.parse_value(keyword.value)
        elif (items := variables.read_mapping(keyword.value)) is not None:
            arguments |= items
        else:
            source = Expression(ast.unparse(keyword.value))
            arguments[f"{name}(**{source})"] = source
    trainer = {"trainer": name} if name.endswith("Trainer") else {}
    return {**arguments, **trainer, f"{name}()": arguments}


def _read_attributes(nodes: list[ast.AST], variables: _Variables) -> dict[str, Any]:
    """Returns the values that are assigned to attributes of a configuration: `config.logging_steps = 1`."""
    configurations = {name for node in nodes for name in _list_configuration_names(node)}
    settings = {}
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(target := node.targets[0], ast.Attribute):
            continue
        if isinstance(target.value, ast.Name) and target.value.id in configurations:
            settings[target.attr] = variables.parse_value(node.value)
    return settings


def _list_configuration_names(node: ast.AST) -> Iterator[str]:
    """Yields the name of a variable that a `…Config(…)` or `…Arguments(…)` is assigned to."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return
    if _get_name(node.value).endswith(("Config", "Arguments")):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _get_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
