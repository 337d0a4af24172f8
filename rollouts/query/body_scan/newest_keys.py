"""The keys that a run logged, from the newest bodies: type, range, and the most frequent values."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rollouts.query.body_scan.logged_key import LoggedKey
from rollouts.query.body_scan.parts import BodyFilePart, FileVersion, get_file_version, list_body_parts
from rollouts.query.grammar import NUMBER_KEYS, TEXT_KEYS, TURN_KEYS

if TYPE_CHECKING:
    from rollouts.query.sql import QueryScope

MAX_KEY_FILES: Final = 8  # of the newest steps


def list_newest_parts(scope: QueryScope) -> list[tuple[BodyFilePart, FileVersion]]:
    """Returns the newest body files that exist."""
    parts: list[tuple[BodyFilePart, FileVersion]] = []
    for part in list_body_parts(scope)[:MAX_KEY_FILES]:
        with suppress(FileNotFoundError):
            parts.append((part, get_file_version(part)))
    return parts


def find_logged_keys(scope: QueryScope) -> dict[str, LoggedKey]:
    """Returns the keys of the scope's newest files by name."""
    from rollouts.query.body_scan.reader import read_logged_keys

    keys: dict[str, LoggedKey] = {}
    for part, version in list_newest_parts(scope):
        for key in read_logged_keys(part, version):
            keys[key.name] = keys[key.name].merge(key) if key.name in keys else key
    return dict(sorted(keys.items()))


def list_trainer_columns(scope: QueryScope) -> set[str]:
    """Returns the names of what the run logged: keys of the newest files, and reward parts."""
    names = {*find_logged_keys(scope), *NUMBER_KEYS, *TEXT_KEYS, *TURN_KEYS}
    for parts in scope.steps.order_by("-step").values_list("parts", flat=True)[:MAX_KEY_FILES]:
        names |= parts.keys()
    return names


def count_logged_values(scope: QueryScope, key: LoggedKey, limit: int) -> list[tuple[str, int]]:
    """Returns [(value as the query language writes it, samples)] of the newest files, the most frequent first."""
    from rollouts.query.body_scan.reader import read_value_counts

    counts: Counter[str] = Counter()
    for part, version in list_newest_parts(scope):
        for value, count in read_value_counts(part, version, key.name, key.numeric):
            counts[value] += count  # numbers that are almost equal are written alike
    return counts.most_common(limit)


def is_count_complete(scope: QueryScope, key: LoggedKey, samples: int) -> bool:
    """Returns whether `count_logged_values` counts each of the scope's samples once, and no file's values were cut."""
    from rollouts.query.body_scan.reader import MAX_VALUES, read_row_count, read_value_counts

    parts = list_newest_parts(scope)
    if sum(read_row_count(*part) for part in parts) != samples:
        return False
    values = (read_value_counts(*part, key.name, key.numeric) for part in parts)
    return len(parts) == 1 or all(len(part_values) < MAX_VALUES for part_values in values)
