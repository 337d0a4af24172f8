"""Any table of generations: CSV, JSON lines, JSON, Parquet, Arrow, or the JSON of a logged table; see `table_rows`.

Which column is what is told with the upload (`columns`, see columns.py), else found by name; every other column is
kept. A row may hold several samples, see `unfold`. Rows say their step where the upload does not; a table without
either is step 0. Columns of rewards by name (`reward_format`, `format_reward`) are parts of the reward, and so are the
numbers between `completion` and `advantage` of a table as TRL logs it, whose sum is the score where the advantages
agree. In a CSV an empty cell is nothing, but an empty response where the response stands; a cell that holds a JSON list
or object is one where the part asks for one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from rolloutdeck.protocol import (
    COLUMN_PRESETS,
    JSON_TOKEN,
    find_row_keys,
    find_samples_column,
    group_numbered_columns,
    guess_columns,
    has_generation_columns,
    is_generation_mapping,
    parse_logged_columns,
)
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import HEAD_BYTES, DumpContext
from rollouts.formats.readers import arrow, jsonl
from rollouts.formats.table.columns import read_column_mapping as told_columns
from rollouts.formats.table.columns import resolve_column_mapping
from rollouts.formats.table.mapping import TableMapping, has_only_tokens
from rollouts.formats.table.rows import PARQUET_MAGIC, NumberedRow, is_csv, read_table_rows, rewind_stream
from rollouts.formats.table.unnest import ResponseUnnester, split_wide_row
from rollouts.samples import LineProblem, Record, SkippedRow

WINDOW = 256  # lines of which the columns are looked at
WINDOW_CHARS = 16 << 20  # of their texts; longer ones are enough by themselves
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Tables of text, and those that hold only token ids, whose text comes with the run's tokenizer."""

    name: str

    def sniff(self, filename: str, head: bytes) -> bool:
        """Whether the first row has what a generation needs; of Parquet, which ends with the names of its columns, and
        of Arrow nothing is known yet. Formats that go by a trainer's name are told."""
        if self.name in COLUMN_PRESETS or head.startswith((PARQUET_MAGIC, arrow.ARROW_STREAM_MAGIC)):
            return self.name == "table"
        try:
            row = first_row(filename, head)
        except UnreadableDumpError:
            return False
        found = guess_columns(row, {})
        if is_generation_mapping(found):
            return (self.name == TOKENS.name) == has_only_tokens(found)
        return self.name == TEXT.name and bool(
            group_numbered_columns(row) or find_samples_column(row) or holds_rows(filename, head)
        )

    def read(self, stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
        """Records in the order of the rows. Raises UnreadableDumpError."""
        columns = context.columns or (self.name if self.name in COLUMN_PRESETS else "")
        yield from records(stream, context, columns)


TOKENS, TEXT = TableFormat("token-table"), TableFormat("table")
FORMATS = (TOKENS, *map(TableFormat, COLUMN_PRESETS), TEXT)
TOKEN_ONLY_TABLE_FORMATS = (TOKENS.name, "open-instruct")


def first_row(filename: str, head: bytes) -> Row:
    """Returns the first row; if it is longer than the head, its column names without values. Raises
    UnreadableDumpError."""
    try:
        for row in read_table_rows(io.BytesIO(head), head, DumpContext(filename)):
            if not isinstance(row, LineProblem):
                return row[1]
    except UnreadableDumpError:
        if len(head) < HEAD_BYTES:
            raise
    if names := parse_logged_columns(head.removeprefix(jsonl.BOM)):
        return dict.fromkeys(names)
    begun = re.match(rb"\s*(?:\[\s*)?(?=\{)", head.removeprefix(jsonl.BOM))
    return dict.fromkeys(cut_names(head.removeprefix(jsonl.BOM)[begun.end() :]) if begun else ())


def holds_rows(filename: str, head: bytes) -> bool:
    """Whether a JSON file has rows of generations somewhere in it, or a first line that is longer than this has."""
    start = head.removeprefix(jsonl.BOM).lstrip()
    if filename.endswith(".json") or start.startswith(b"["):
        return any(map(has_generation_columns, find_row_keys(start)))
    return start.startswith(b"{") and b"\n" not in head and any(map(has_generation_columns, find_row_keys(start)))


def cut_names(start: bytes) -> list[str]:
    """The keys of an object of which this is the beginning."""
    depth, names = 0, []
    for token in JSON_TOKEN.finditer(start):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0:
            break
        if depth == 1 and token["key"]:
            names.append(token["key"].decode("utf-8", "replace"))
    return names


def find_table_format(columns: str) -> str:
    """The format of a table of which these columns were told; empty where none were. Raises UnreadableDumpError."""
    if not columns:
        return ""
    return TOKENS.name if has_only_tokens(told_columns(columns)) else TEXT.name


def records(stream: BinaryIO, context: DumpContext, columns: str) -> Iterator[Record | LineProblem | SkippedRow]:
    head = stream.read(WINDOW)
    found = narrow(read_table_rows(rewind_stream(head, stream), head, context), columns)
    first = list(window(found))
    begun = [item[1] for item in first if not isinstance(item, LineProblem)]
    names = list(dict.fromkeys(key for row in begun for key in row))
    if not names:
        raise UnreadableDumpError("It holds no row.")
    parts = resolve_column_mapping(names, columns)
    folds = ResponseUnnester(parts, begun)
    unfolded = [one for row in begun for one, _ in folds.rows(row)]
    shape = TableMapping(parts, names, unfolded, textual=is_csv(head))
    for item in chain(first, found):
        if isinstance(item, LineProblem):
            yield item
            continue
        number, row = item
        samples = list(folds.rows(row))
        if not samples:
            yield SkippedRow("a row with an empty list of responses")
        for one, place in samples:
            try:
                made = shape.record(one, context)
            except ValueError as error:
                yield LineProblem(number, str(error))
                continue
            yield placed(made, number, place)


def narrow(found: Iterator[NumberedRow], columns: str) -> Iterator[NumberedRow]:
    """The rows, those of several generations as a row for each."""
    for item in found:
        if isinstance(item, LineProblem):
            yield item
        else:
            yield from ((item[0], row) for row in split_wide_row(item[1], told_columns(columns)))


def window(found: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    """The first rows, by which the others are understood."""
    seen, held = 0, 0
    for item in found:
        yield item
        if isinstance(item, LineProblem):
            continue
        seen, held = seen + 1, held + sum(len(value) for value in item[1].values() if isinstance(value, str))
        if seen >= WINDOW or held > WINDOW_CHARS:
            return


def placed(made: Record, number: int, place: int | None) -> Record:
    """With its place among the responses of its row, which are a group where no prompt says so."""
    if place is not None:
        made.index = place if made.index is None else made.index
        made.group = made.group or (None if made.prompt or made.prompt_ids else str(number))
    return made
