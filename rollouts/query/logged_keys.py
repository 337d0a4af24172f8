"""The keys that a run logged of its own, as the newest bodies tell: type, range, and the values that occur."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rollouts.lib import MAX_LOGGED_KEYS, cached
from rollouts.query import body_scan
from rollouts.query.ast import NAME_FIELDS, NUMBER_FIELDS
from rollouts.query.parser import unquote_text
from rollouts.storage import get_body_file_path

if TYPE_CHECKING:
    import polars as pl

    from rollouts.query.body_scan import BodyFilePart
    from rollouts.query.sql import QueryScope

MAX_KEY_FILES: Final = 8  # of the newest steps
MOST_VALUES: Final = 200
TAKEN: Final = (*NUMBER_FIELDS, *NAME_FIELDS, "is", "no", "or", "and")
OPEN_WORD: Final = re.compile(r"[^\W\d][\w./\-]*")
WORD: Final = re.compile(r"[\w./\-]+")


@dataclass(frozen=True, slots=True)
class LoggedKey:
    """`count` is how many of the samples looked at have it; `low` and `high` of a number, `different` texts else."""

    name: str
    numeric: bool
    count: int
    low: float | None = None
    high: float | None = None
    different: int = 0


def find_logged_keys(scope: QueryScope) -> dict[str, LoggedKey]:
    """By name, of the newest files of the scope; none where they cannot be read."""
    found: dict[str, LoggedKey] = {}
    for part in newest(scope):
        for key in of_file(part, stamp(part)):
            found[key.name] = joined(found[key.name], key) if key.name in found else key
    return dict(sorted(found.items()))


def joined(one: LoggedKey, two: LoggedKey) -> LoggedKey:
    ends = [end for end in (one.low, two.low, one.high, two.high) if end is not None]
    low, high = (min(ends), max(ends)) if ends else (None, None)
    different = max(one.different, two.different)
    return LoggedKey(one.name, one.numeric and two.numeric, one.count + two.count, low, high, different)


def newest(scope: QueryScope) -> list[BodyFilePart]:
    return [part for part in body_scan.list_body_parts(scope)[:MAX_KEY_FILES] if get_body_file_path(part.path).exists()]


def stamp(part: BodyFilePart) -> int:
    """Changes with the file; 0 where it has gone meanwhile."""
    try:
        return get_body_file_path(part.path).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@cached(MAX_LOGGED_KEYS)
def of_file(part: BodyFilePart, stamp: int) -> tuple[LoggedKey, ...]:
    """`stamp` names the content: a file never changes, but folding makes another one of the same name."""
    import polars as pl

    try:
        rows, columns = opened(part)
        own = [name for name in columns if name.startswith(("num.", "str.")) and name.partition(".")[2]]
        told = rows.select(
            [pl.col(name).is_not_null().sum().alias(f"count {name}") for name in own]
            + [pl.col(name).min().alias(f"low {name}") for name in own if name.startswith("num.")]
            + [pl.col(name).max().alias(f"high {name}") for name in own if name.startswith("num.")]
            + [
                pl.col(name).drop_nulls().n_unique().alias(f"different {name}")
                for name in own
                if name.startswith("str.")
            ]
        ).collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError):
        return ()
    row: dict[str, Any] = told.row(0, named=True) if own else {}
    return tuple(key for name in own if (key := told_of(name, row)).count)


def told_of(name: str, row: dict[str, Any]) -> LoggedKey:
    kind, _, own = name.partition(".")
    ends = row.get(f"low {name}"), row.get(f"high {name}")
    return LoggedKey(own, kind == "num", row[f"count {name}"], *ends, different=row.get(f"different {name}", 0))


def opened(part: BodyFilePart) -> tuple[pl.LazyFrame, list[str]]:
    import polars as pl

    path = get_body_file_path(part.path)
    rows = pl.scan_parquet(path)
    pieces = [rows.slice(first, count) for first, count in part.pieces] or [rows]
    return pl.concat(pieces), list(pl.read_parquet_schema(path))


def count_logged_values(scope: QueryScope, key: LoggedKey, most: int) -> list[tuple[str, int]]:
    """[(value as the query writes it, samples)] of the newest files, the most frequent first."""
    counts: Counter[str] = Counter()
    for part in newest(scope):
        counts.update(dict(values_of(part, stamp(part), key.name, key.numeric)))
    return counts.most_common(most)


def is_count_complete(scope: QueryScope, key: LoggedKey, samples: int) -> bool:
    """Whether `values` counts each of the scope's samples once: a row is read for each, and no file was cut short."""
    parts = newest(scope)
    if sum(rows_of(part, stamp(part)) for part in parts) != samples:
        return False
    listed = (values_of(part, stamp(part), key.name, key.numeric) for part in parts)
    return len(parts) == 1 or all(len(found) < MOST_VALUES for found in listed)


@cached(MAX_LOGGED_KEYS)
def rows_of(part: BodyFilePart, stamp: int) -> int:
    import polars as pl

    try:
        return int(opened(part)[0].select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError):
        return 0


@cached(MAX_LOGGED_KEYS)
def values_of(part: BodyFilePart, stamp: int, name: str, numeric: bool) -> tuple[tuple[str, int], ...]:
    import polars as pl

    column = f"{'num' if numeric else 'str'}.{name}"
    try:
        rows, columns = opened(part)
        if column not in columns:
            return ()
        one = pl.col(column)
        counted = rows.filter(one.is_not_null()).group_by(one).len().sort("len", descending=True).head(MOST_VALUES)
        found = counted.collect().rows()
    except (pl.exceptions.PolarsError, OSError):
        return ()
    return tuple((f"{value:.6g}" if numeric else quote_value(value), count) for value, count in found)


# --- how the query writes them ----------------------------------------------------------------------------------------


def format_key(name: str) -> str:
    """A key as the query language asks for it, `name_of` the other way round."""
    if OPEN_WORD.fullmatch(name) and name not in TAKEN:
        return name
    return f"extra.{name}" if WORD.fullmatch(name) else f"extra.{in_quotes(name)}"


def parse_key_name(asked: str) -> str:
    return unquote_text(asked[6:]) if asked.startswith("extra.") else asked


def quote_value(text: str) -> str:
    """A value, in quotes where it needs them."""
    return text if WORD.fullmatch(text) else in_quotes(text)


def in_quotes(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
