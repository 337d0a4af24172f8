"""Reads the Parquet body files with polars: which samples match a term, and which keys were logged.

Import this module inside functions only: workers fork, and the threads that polars starts do not survive a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl
from django.utils.translation import gettext as _

from rollouts.errors import StorageUnavailableError
from rollouts.lib import CacheSize, cached, compute_tolerance
from rollouts.query.ast import (
    And,
    LoggedKeyTerm,
    Not,
    Or,
    QueryNode,
    RegexTerm,
    TextTerm,
    collect_leaves,
)
from rollouts.query.body_scan.logged_key import LoggedKey
from rollouts.query.body_scan.parts import BodyFilePart, FileVersion
from rollouts.query.body_scan.scanner import collect_frame, collect_frames
from rollouts.query.grammar import NUMBER_KEYS, TEXT_KEYS, format_number, list_key_aliases, quote_value
from rollouts.storage import fetch_body_file

MAX_VALUES: Final = 200  # of a logged key in a file
READ_ERRORS: Final = (pl.exceptions.PolarsError, OSError)

PartMatches = tuple[tuple[str, ...], frozenset[str]]  # ids of the matching samples, keys that can be queried


def find_pattern_error(pattern: str) -> str:
    """Returns why polars does not accept a regular expression, empty if it does."""
    try:
        pl.Series(["x"]).str.contains(pattern)
    except pl.exceptions.PolarsError as error:
        message = " ".join(str(error).split()).split(" This error occurred")[0]
        return message.rpartition("error: ")[2][:200].rstrip(".") or _("not supported")
    return ""


def match_texts(pattern: str, texts: Sequence[str]) -> list[bool]:
    frame = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).lazy()
    return collect_frame(frame.select(pl.col("text").str.contains(pattern)), pattern)["text"].to_list()


def open_part(part: BodyFilePart) -> list[pl.LazyFrame]:
    """Returns the pieces of the file."""
    rows = pl.scan_parquet(fetch_body_file(part.path))
    return [rows.slice(first, count) for first, count in part.pieces] or [rows]


def read_column_names(part: BodyFilePart) -> frozenset[str]:
    return frozenset(pl.read_parquet_schema(fetch_body_file(part.path)))


def read_matches(parts: Sequence[BodyFilePart], node: QueryNode) -> list[PartMatches]:
    """Returns the matches of each part, with keys if `node` asks for one. Raises FileNotFoundError and
    StorageUnavailableError."""
    leaves = collect_leaves(node)
    asks_keys = any(isinstance(leaf, LoggedKeyTerm) for leaf in leaves)
    queries: list[pl.LazyFrame] = []
    keys: list[frozenset[str]] = []
    try:
        for part in parts:
            # Texts have the same columns in each file, and to read their names takes as long as a tenth of the scan.
            columns = read_column_names(part) if asks_keys else frozenset[str]()
            test = build_expression(node, columns)
            queries.append(pl.concat([piece.filter(test).select("id") for piece in open_part(part)]))
            keys.append(list_keys(columns) if asks_keys else columns)
        frames = collect_frames(queries, any(isinstance(leaf, RegexTerm) for leaf in leaves))
    except pl.exceptions.PolarsError as error:
        raise StorageUnavailableError(f"A body file cannot be read: {error}.") from error
    return [(tuple(frame["id"]), part_keys) for frame, part_keys in zip(frames, keys, strict=True)]


def list_keys(columns: frozenset[str]) -> frozenset[str]:
    """Returns the keys that can be queried in a file with these columns."""
    names = (name.partition(".") for name in columns)
    logged = frozenset(key for kind, _, key in names if key and kind in ("num", "str", "json"))
    return logged.union(NUMBER_KEYS, TEXT_KEYS)


def build_expression(node: QueryNode, columns: frozenset[str]) -> pl.Expr:
    """Returns `node` over the columns `prompt`, `response`, `num.<key>` (float64), `str.<key>`; never null."""
    match node:
        case And(parts):
            return pl.all_horizontal([build_expression(part, columns) for part in parts])
        case Or(parts):
            return pl.any_horizontal([build_expression(part, columns) for part in parts])
        case Not(part):
            return ~build_expression(part, columns)
        case TextTerm(text, any_case):
            if any_case and text.upper() != text:
                return build_text_test("(?i)" + pl.escape_regex(text))
            return build_text_test(text, literal=True)
        case RegexTerm(pattern):
            return build_text_test(pattern)
        case LoggedKeyTerm():
            tests = [test for key in list_key_aliases(node.key) for test in build_key_tests(node, key)]
            return pl.any_horizontal(pl.lit(False), *(test.fill_null(False) for name, test in tests if name in columns))
    raise AssertionError(f"{node} is not a term about bodies")


def build_text_test(pattern: str, literal: bool = False) -> pl.Expr:
    in_prompt, in_response = (
        pl.col(name).str.contains(pattern, literal=literal).fill_null(False) for name in ("prompt", "response")
    )
    return in_prompt | in_response


def build_key_tests(term: LoggedKeyTerm, key: str) -> Iterator[tuple[str, pl.Expr]]:
    """Yields (column, test) for the columns in which a key may be logged: as a number, as text, as JSON."""
    number = key if key in NUMBER_KEYS else f"num.{key}"
    text = key if key in TEXT_KEYS else f"str.{key}"
    json = f"json.{key}"
    match term.sign:
        case "known":
            yield from ((name, pl.col(name).is_not_null()) for name in (number, text, json))
            return
        case ":":
            pattern = "(?i)" + pl.escape_regex(term.text)
            yield from ((name, pl.col(name).str.contains(pattern)) for name in (text, json))
        case "=":
            yield text, pl.col(text) == term.text
    value = {"true": 1.0, "false": 0.0}.get(term.text.lower(), term.number)
    if value is not None:
        yield number, build_comparison(pl.col(number), term.sign, value)


def build_comparison(number: pl.Expr, sign: str, value: float) -> pl.Expr:
    near = compute_tolerance(value)
    match sign:
        case "<":
            return number < value - near
        case "<=":
            return number <= value + near
        case ">":
            return number > value + near
        case ">=":
            return number >= value - near
        case _:
            return (number - value).abs() <= near


# --- logged keys, for completion: `version` is a part of the cache key, and a file that cannot be read has nothing ----


@cached(CacheSize.LOGGED_KEYS)
def read_logged_keys(part: BodyFilePart, version: FileVersion) -> tuple[LoggedKey, ...]:
    try:
        names = [name for name in read_column_names(part) if name.startswith(("num.", "str.")) and len(name) > 4]
        if not names:
            return ()
        statistics = pl.concat(open_part(part)).select(map(build_key_statistics, names)).collect(engine="streaming")
    except READ_ERRORS:
        return ()
    row = statistics.row(0, named=True)
    return tuple(LoggedKey(name[4:], name.startswith("num."), **row[name]) for name in names if row[name]["count"])


def build_key_statistics(name: str) -> pl.Expr:
    """Returns the fields of `LoggedKey` that are computed from the values."""
    values = pl.col(name)
    if name.startswith("num."):
        return pl.struct(count=values.count(), low=values.min(), high=values.max()).alias(name)
    return pl.struct(count=values.count(), distinct=values.drop_nulls().n_unique()).alias(name)


@cached(CacheSize.LOGGED_KEYS)
def read_row_count(part: BodyFilePart, version: FileVersion) -> int:
    try:
        return int(pl.concat(open_part(part)).select(pl.len()).collect().item())
    except READ_ERRORS:
        return 0


@cached(CacheSize.LOGGED_KEYS)
def read_value_counts(part: BodyFilePart, version: FileVersion, key: str, numeric: bool) -> tuple[tuple[str, int], ...]:
    """Returns (value as the query language writes it, samples), the most frequent first, at most `MAX_VALUES`."""
    name = f"{'num' if numeric else 'str'}.{key}"
    values = pl.col(name)
    try:
        if name not in read_column_names(part):
            return ()
        groups = pl.concat(open_part(part)).filter(values.is_not_null()).group_by(values).len()
        rows = groups.sort("len", descending=True).head(MAX_VALUES).collect().rows()
    except READ_ERRORS:
        return ()
    return tuple((format_number(value) if numeric else quote_value(value), count) for value, count in rows)
