"""The table of the configuration: keys in groups, with the other run and the changes between attempts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollouts.lib import MISSING
from rollouts.runs import ConfigKey, format_config_value

MAX_SHOWN_KEYS = 2000
MAX_VALUE_CHARS = 120  # a longer value is cut and opens in place
SHOW_VALUES = ("differs", "attempts", "all")


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text; `rest` is what is cut off. `missing`: the configuration does not have the key."""

    text: str
    rest: str = ""
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ConfigRow:
    key: ConfigKey
    value: ShownValue
    other: ShownValue
    changes: Sequence[tuple[int, ShownValue, ShownValue]]

    @property
    def is_point(self) -> bool:
        return self.key.differs or bool(self.changes)


@dataclass(frozen=True, slots=True)
class ConfigGroup:
    """The keys of one top-level name. `folded` are the keys in which nothing differs, if others do."""

    name: str
    rows: Sequence[ConfigRow]
    folded: Sequence[ConfigRow]
    differing: int
    changed: int

    @property
    def size(self) -> int:
        return len(self.rows) + len(self.folded)


def build_groups(keys: Sequence[ConfigKey], *, show: str, words: str, fold: bool) -> tuple[list[ConfigGroup], int]:
    """The groups, and how many matching keys are left out. With `words`, nothing is folded."""
    needle = words.casefold()
    matching = [key for key in keys if is_shown(key, show) and (not needle or contains(key, needle))]
    groups: dict[str, list[ConfigRow]] = {}
    for key in matching[:MAX_SHOWN_KEYS]:
        groups.setdefault(key.name.partition(".")[0] if "." in key.name else "", []).append(build_row(key))
    folds = fold and not words
    result = [build_group(name, rows, folds=folds) for name, rows in sorted(groups.items())]
    return result, len(matching) - sum(len(rows) for rows in groups.values())


def is_shown(key: ConfigKey, show: str) -> bool:
    return show == "all" or (show == "differs" and key.differs) or (show == "attempts" and bool(key.changes))


def contains(key: ConfigKey, needle: str) -> bool:
    values = [key.value, key.other, *(value for change in key.changes for value in (change.before, change.after))]
    return needle in key.name.casefold() or any(needle in format_value(value).casefold() for value in values)


def build_group(name: str, rows: Sequence[ConfigRow], *, folds: bool) -> ConfigGroup:
    points = [row for row in rows if row.is_point]
    differing, changed = sum(row.key.differs for row in rows), sum(bool(row.changes) for row in rows)
    if not folds:
        return ConfigGroup(name, rows, (), differing, changed)
    return ConfigGroup(name, points, [row for row in rows if not row.is_point], differing, changed)


def build_row(key: ConfigKey) -> ConfigRow:
    changes = [
        (change.attempt, build_shown_value(change.before), build_shown_value(change.after)) for change in key.changes
    ]
    return ConfigRow(key, build_shown_value(key.value), build_shown_value(key.other), changes)


def format_value(value: Any) -> str:
    return "" if value is MISSING else format_config_value(value)


def build_shown_value(value: Any) -> ShownValue:
    text = format_value(value)
    return ShownValue(text[:MAX_VALUE_CHARS], text[MAX_VALUE_CHARS:], value is MISSING)
