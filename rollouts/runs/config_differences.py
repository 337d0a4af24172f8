"""The configuration of a run as flat keys, with its differences to another run and between attempts."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollouts.lib import MISSING, are_equal_config_values, flatten_config, normalize_config_value
from rollouts.models import Attempt, Run

YAML_WORDS = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A value before and after an attempt started. `MISSING` if the key was added or removed."""

    attempt: int
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key, its value in this run and in the other one, and its changes between attempts."""

    name: str
    value: Any
    other: Any = MISSING
    differs: bool = False
    changes: Sequence[ConfigChange] = field(default=())


def load_config_keys(run: Run, other: Run | None = None) -> list[ConfigKey]:
    """Returns all keys of both runs and of all attempts, sorted by name."""
    own = flatten_config(run.config)
    others = flatten_config(other.config) if other else {}
    changes: dict[str, list[ConfigChange]] = {}
    for attempt in run.attempts.exclude(config_changes={}).order_by("number"):
        for name, change in iterate_changes(attempt):
            changes.setdefault(name, []).append(change)
    names = sorted({*own, *others, *changes})
    return [
        ConfigKey(
            name,
            own.get(name, MISSING),
            others.get(name, MISSING),
            other is not None and not are_equal_config_values(own.get(name, MISSING), others.get(name, MISSING)),
            tuple(changes.get(name, ())),
        )
        for name in names
    ]


def iterate_changes(attempt: Attempt) -> Iterator[tuple[str, ConfigChange]]:
    """Yields the flat keys that differ. An attempt stores the top-level keys before and after."""
    for key, pair in attempt.config_changes.items():
        before, after = (flatten_config({key: value}) if value is not None else {} for value in pair)
        for name in sorted({*before, *after}):
            old, new = before.get(name, MISSING), after.get(name, MISSING)
            if not are_equal_config_values(old, new):
                yield name, ConfigChange(attempt.number, old, new)


def dump_yaml(config: Mapping[str, Any], indent: int = 0) -> str:
    """The configuration as YAML. Scalars are written as JSON, which is YAML too."""
    lines = []
    for key, value in config.items():
        name = "  " * indent + (key if is_plain_key(key) else json.dumps(key, ensure_ascii=False))
        if isinstance(value, Mapping) and value:
            lines += [f"{name}:", dump_yaml(value, indent + 1)]
        else:
            lines.append(f"{name}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines)


def is_plain_key(key: str) -> bool:
    return key.replace("_", "a").replace("-", "a").isalnum() and key[0].isalpha() and key.lower() not in YAML_WORDS


def dump_overrides(config: Mapping[str, Any]) -> str:
    """The configuration as `key=value` arguments for a shell, one per line."""
    lines = []
    for name, value in flatten_config(config).items():
        text = value if isinstance(value, str) and is_plain_text(value) else json.dumps(value, ensure_ascii=False)
        lines.append(shlex.quote(f"{name}={text}"))
    return "\n".join(lines)


def is_plain_text(text: str) -> bool:
    """Whether a text is read as text without quotes."""
    return bool(text) and isinstance(normalize_config_value(text), str) and not set(text) & set(" \n\t,{}[]()\"'=:\\$#")
