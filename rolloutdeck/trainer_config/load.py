"""A trainer's configuration as dotted names: from JSON, YAML, Python or words of a command line."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_config import command_line, python_source
from rolloutdeck.trainer_config.command_line import parse_overrides as parse_overrides

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
MAX_BYTES = 16 << 20


def read_config_file(path: Path) -> tuple[dict[str, Any], bool]:
    """Dotted name -> value, and whether the file is a whole configuration rather than a list of overrides.

    Raises UsageError when the file can't be read or understood.
    """
    try:
        return _read(path, _text(path))
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply for a configuration.") from None


def _read(path: Path, text: str) -> tuple[dict[str, Any], bool]:
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return _tree(path, _json(path, text))
    if path.suffix in (".yaml", ".yml"):
        return _tree(path, _yaml(path, text))
    if path.suffix == ".py":
        return _words(path, "Python", python_source.parse_python_settings, text), False
    if path.suffix in (".sh", ".bash") or text.startswith("#!"):
        raise UsageError(
            f"{path} is a shell script, and only a shell can say what it starts; give the configuration file, the "
            "Python file or the settings themselves, as key=value or --flag value."
        )
    return _words(path, "list of key=value", lambda text: parse_overrides(command_line.split_words(text)), text), False


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:  # a device says nothing of its size and has no end
            start = file.read(MAX_BYTES + 1)
        if len(start) > MAX_BYTES:
            raise UsageError(f"{path} is larger than {MAX_BYTES >> 20} MiB; is it a configuration?")
        return start.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text file.") from error


def _tree(path: Path, found: Any) -> tuple[dict[str, Any], bool]:
    if isinstance(found, list) and all(isinstance(item, str) for item in found):  # Hydra's own overrides.yaml
        return parse_overrides(found), False
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no settings: it should be a mapping of names to values.")
    return resolve_references(dict(flatten_settings(_with_defaults(path, found)))), True


def _with_defaults(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """With the files under it that its list `defaults` names for its own place, like `- ../envs@_here_` of Hydra."""
    below: dict[str, Any] = {}
    named = tree.get("defaults")
    for entry in named if isinstance(named, list) else []:
        name, _, package = entry.partition("@") if isinstance(entry, str) else ("", "", "")
        file = path.parent / f"{name}.yaml"
        if name and name != "_self_" and package in ("", "_here_", "_global_") and _is_there(file):
            found = _yaml(file, _text(file))
            below |= found if isinstance(found, dict) else {}
    return {**below, **tree}


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for one
        return False


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}.") from error


def _words(path: Path, what: str, read: Callable[[str], dict[str, Any]], text: str) -> dict[str, Any]:
    try:
        return read(text)
    except ValueError as error:
        raise UsageError(f"{path} is no {what}: {' '.join(str(error).split())}.") from error


def flatten_settings(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten_settings(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def resolve_references(settings: dict[str, Any]) -> dict[str, Any]:
    """With plain references to other settings, `${trainer.project_name}`, replaced by their values."""

    def value_of(value: Any) -> Any:
        for _ in range(8):
            if not isinstance(value, str) or not _REFERENCE.search(value):
                break
            whole = _REFERENCE.fullmatch(value)
            if whole:
                value = settings.get(whole.group(1), value.replace("${", "$ {"))
            else:
                value = _REFERENCE.sub(lambda found: str(settings.get(found.group(1), f"<{found.group(1)}>")), value)
        return value

    return {name: value_of(value) for name, value in settings.items()}


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml = importlib.import_module("yaml")  # trainers bring it, we don't
    except ImportError:
        raise UsageError(
            f"{path} is YAML, which needs PyYAML: run this where PyYAML is installed, as in the trainer's environment, "
            "or give the configuration as JSON."
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is no YAML: {' '.join(str(error).split())}.") from error
