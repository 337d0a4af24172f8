"""Loads a trainer's configuration as {dotted name: value} from JSON, YAML, Python or a list of overrides."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_config.command_line import parse_overrides
from rolloutdeck.trainer_config.python_source import parse_python_settings

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
MAX_RESOLVED_CHARS = 1 << 16
MAX_BYTES = 16 << 20
MAX_INCLUDE_DEPTH = 8  # of YAML files that include each other


def read_config_file(path: Path) -> tuple[dict[str, Any], bool]:
    """Returns {dotted name: value}, and whether it is a complete configuration, not overrides. Raises UsageError."""
    try:
        return _parse_file(path, _read_text(path))
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply for a configuration.") from None


def _parse_file(path: Path, text: str) -> tuple[dict[str, Any], bool]:
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return _parse_tree(path, _parse_with(path, "valid JSON", json.loads, text))
    if path.suffix in (".yaml", ".yml"):
        return _parse_tree(path, _parse_yaml(path, text))
    if path.suffix == ".py":
        return _parse_with(path, "a Python file", parse_python_settings, text), False
    if path.suffix in (".sh", ".bash") or text.startswith("#!"):
        raise UsageError(
            f"{path} is a shell script, which can't be read. Give the configuration file, the Python file or the "
            "settings, as key=value or --flag value."
        )
    words = _parse_with(path, "a list of key=value", partial(shlex.split, comments=True), text.replace("\\\n", " "))
    return parse_overrides(words), False


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:  # read a limited number of bytes: a device has no size and no end
            start = file.read(MAX_BYTES + 1)
        if len(start) > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB; is it a configuration?")
        return start.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file.") from error


def _parse_tree(path: Path, content: Any) -> tuple[dict[str, Any], bool]:
    if isinstance(content, list) and all(isinstance(item, str) for item in content):  # Hydra's overrides.yaml
        return parse_overrides(content), False
    if not isinstance(content, dict):
        raise UsageError(f"{path} contains no settings. It should be a mapping of names to values.")
    tree, complete = _add_defaults(path, content)
    return resolve_references(dict(flatten_settings(tree))), complete


def _add_defaults(path: Path, tree: dict[str, Any], depth: int = 0) -> tuple[dict[str, Any], bool]:
    """Returns the tree merged over the files of its list `defaults`, for entries like Hydra's `- ../envs@_here_`.

    The second value is false if another entry, or a missing file, has more settings.
    """
    inherited: dict[str, Any] = {}
    defaults = tree.get("defaults")
    complete = True
    for entry in defaults if isinstance(defaults, list) else []:
        name, _, package = entry.partition("@") if isinstance(entry, str) else ("", "", "")
        file = path.parent / f"{name}.yaml"
        if name and name != "_self_" and package in ("", "_here_", "_global_") and _is_file(file):
            content = _parse_yaml(file, _read_text(file))
            if isinstance(content, dict) and depth < MAX_INCLUDE_DEPTH:
                content, is_complete = _add_defaults(file, content, depth + 1)
                inherited, complete = _merge_trees(inherited, content), complete and is_complete
            elif content:
                complete = False
        elif name != "_self_":
            complete = False
    return _merge_trees(inherited, tree), complete


def _merge_trees(base: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Returns `base` with the values of `tree`; of a mapping that both have, the others remain, as in Hydra."""
    merged = dict(base)
    for name, value in tree.items():
        known = merged.get(name)
        merged[name] = _merge_trees(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long for a file
        return False


def _parse_yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")  # not a dependency of ours; the trainers install it
    except ImportError:
        raise UsageError(
            f"{path} is YAML, which needs PyYAML. Run this where PyYAML is installed, for example in the trainer's "
            "environment, or give the configuration as JSON."
        ) from None
    # PyYAML's own: a number of 5,000 digits is a ValueError, and `!!int` without one a LookupError
    errors = (yaml.YAMLError, ValueError, LookupError)
    return _parse_with(path, "valid YAML", partial(_load_yaml, yaml), text, errors)


def _load_yaml(yaml: Any, text: str) -> Any:
    """Like `yaml.safe_load`, but dates stay texts: JSON has none, and PyYAML fails for a day that does not exist."""
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("tag:yaml.org,2002:timestamp", loader.construct_yaml_str)
    return yaml.load(text, loader)


def _parse_with(
    path: Path,
    expected: str,
    parse: Callable[[str], Any],
    text: str,
    errors: tuple[type[Exception], ...] = (ValueError,),
) -> Any:
    """Returns `parse(text)`. Raises UsageError instead of these errors."""
    try:
        return parse(text)
    except errors as error:
        raise UsageError(f"{path} is not {expected}: {' '.join(str(error).split())}.") from error


def flatten_settings(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) for each leaf of the tree."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def resolve_references(settings: dict[str, Any]) -> dict[str, Any]:
    """Replaces references to other settings, like `${trainer.project_name}`, by their values, up to 8 in a chain.

    A reference to something else, like `${oc.env:HOME}`, stays. So does a value that would be longer than
    `MAX_RESOLVED_CHARS`: one that names itself several times grows without end.
    """

    def resolve(value: Any) -> Any:
        original = value
        for _ in range(8):
            if not isinstance(value, str) or not _REFERENCE.search(value):
                break
            if full_match := _REFERENCE.fullmatch(value):
                value = settings.get(full_match.group(1), value)
                continue
            value = _replace_references(value, settings)
            if value is None:
                return original
        return value

    return {name: resolve(value) for name, value in settings.items()}


def _replace_references(text: str, settings: Mapping[str, Any]) -> str | None:
    """Returns None if the result would be too long."""
    parts, length, end = list[str](), 0, 0
    for match in _REFERENCE.finditer(text):
        parts += [text[end : match.start()], str(settings.get(match.group(1), match.group()))]
        end = match.end()
        length += len(parts[-2]) + len(parts[-1])
        if length > MAX_RESOLVED_CHARS:
            return None
    return "".join([*parts, text[end:]])
