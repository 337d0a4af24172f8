"""Which column of a table is which part of a sample: as somebody told it, else by name.

The names are those of `rolloutdeck.protocol.columns`.
"""

from __future__ import annotations

from collections.abc import Iterable

from rolloutdeck.protocol import (
    COLUMN_PRESETS,
    format_column_names,
    guess_columns,
    has_response_part,
    parse_column_mapping,
)
from rollouts.errors import UnreadableDumpError


def read_column_mapping(text: str) -> dict[str, str]:
    """{part: column} as it was told. Raises UnreadableDumpError."""
    try:
        return parse_column_mapping(text)
    except ValueError as error:
        raise UnreadableDumpError(str(error)) from None


def resolve_column_mapping(names: Iterable[str], text: str = "") -> dict[str, str]:
    """{part: column} of a table with these columns. Raises UnreadableDumpError where it holds no generation, or lacks a
    column that was told."""
    names, wanted = list(names), read_column_mapping(text)
    missing = [column for column in wanted.values() if column not in names]
    if missing and text not in COLUMN_PRESETS:
        raise UnreadableDumpError(f"It has no column `{missing[0][:80]}`; it has {format_column_names(names)}.")
    found = guess_columns(names, {part: column for part, column in wanted.items() if column in names})
    if not has_response_part(found):
        raise UnreadableDumpError(
            f"No column of it is known to hold what the model wrote; "
            f"it has {format_column_names(names)}. Say which with "
            "`--map prompt=COLUMN,response=COLUMN`."
        )
    return found
