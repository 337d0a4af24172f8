"""Any table of generations: CSV, JSON Lines, JSON, Parquet, Arrow, or the JSON of a logged table, see `rows.py`.

The upload specifies which column is which part of a sample (`columns`, see `mapping.py`); else the columns are guessed
by name. All other columns become extras. A row may hold several samples, see `unnest.py`. The step is that of the
upload, else of the row, else 0. Columns such as `reward_format` and `format_reward` are reward parts. So are the
numbers between `completion` and `advantage` of a table that TRL logged; their sum is the score if it is consistent with
the advantages. An empty cell of a CSV is a missing value, but an empty response is a response. A cell with a JSON list
or object is parsed if the part has that type.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

from rolloutdeck import protocol
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import HEAD_BYTES, DumpContext
from rollouts.formats.readers import BOM, JsonObject, NumberedRow
from rollouts.formats.table.mapping import TableMapping, read_column_mapping, resolve_column_mapping
from rollouts.formats.table.rows import BINARY_MAGICS, is_csv, read_table_rows, rewind_stream, strip_start
from rollouts.formats.table.unnest import ResponseUnnester, split_wide_row
from rollouts.samples import LineProblem, Record, SkippedRow, count_chars

START_BYTES = 256  # enough to recognise the file type
WINDOW_ROWS = 256  # the first rows, by which the columns are recognised
MAX_LAYOUTS = 1000  # different sets of keys that are compared
WINDOW_CHARS = 16 << 20  # of their texts: fewer rows are enough if they are longer


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Tables of text, and tables with only token ids, whose text is decoded with the tokenizer of the run."""

    name: str

    def sniff(self, filename: str, head: bytes) -> bool:
        """Returns whether the first row is a generation. Parquet, which has its column names at the end, and Arrow are
        always accepted. Presets are only used if the upload names them."""
        if self.name in protocol.COLUMN_PRESETS or head.startswith(BINARY_MAGICS):
            return self.name == "table"
        try:
            row = read_first_row(filename, head)
        except UnreadableDumpError:
            return False
        columns = protocol.guess_columns(row, {})
        if protocol.is_generation_mapping(columns):
            return (self.name == TOKENS.name) == protocol.has_only_tokens(columns)
        return self.name == TEXT.name and bool(
            protocol.group_numbered_columns(row) or protocol.find_samples_column(row) or contains_rows(filename, head)
        )

    def read(self, stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem | SkippedRow]:
        """Yields records in the order of the rows. Raises UnreadableDumpError."""
        columns = context.columns or (self.name if self.name in protocol.COLUMN_PRESETS else "")
        yield from read_records(stream, context, columns)


TOKENS, TEXT = TableFormat("token-table"), TableFormat("table")
FORMATS = (TOKENS, *map(TableFormat, protocol.COLUMN_PRESETS), TEXT)
TOKEN_ONLY_TABLE_FORMATS = (TOKENS.name, "open-instruct")


def read_first_row(filename: str, head: bytes) -> JsonObject:
    """Returns the first row, or its column names if it is longer than the head. Raises UnreadableDumpError."""
    try:
        for row in read_table_rows(io.BytesIO(head), head, DumpContext(filename)):
            if not isinstance(row, LineProblem):
                return row[1]
    except UnreadableDumpError:
        if len(head) < HEAD_BYTES:
            raise
    start = head.removeprefix(BOM)
    if names := protocol.parse_logged_columns(start):
        return dict.fromkeys(names)
    match = re.match(rb"\s*(?:\[\s*)?(?=\{)", start)
    return dict.fromkeys(scan_object_keys(start[match.end() :]) if match else ())


def contains_rows(filename: str, head: bytes) -> bool:
    """Returns whether the head of a JSON file, or of its long first line, has rows of generations at any depth."""
    start = strip_start(head)
    is_document = filename.endswith(".json") or start.startswith(b"[")
    if not is_document and (b"\n" in head or not start.startswith(b"{")):
        return False
    return any(map(protocol.has_generation_columns, protocol.find_row_keys(start)))


def scan_object_keys(start: bytes) -> list[str]:
    """Returns the keys of the truncated object `start`."""
    depth, names = 0, []
    for token in protocol.JSON_TOKEN.finditer(start):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0:
            break
        if depth == 1 and token["key"]:
            names.append(token["key"].decode("utf-8", "replace"))
    return names


def find_table_format(columns: str) -> str:
    """Returns the format of a table with this column mapping; empty without a mapping. Raises UnreadableDumpError."""
    if not columns:
        return ""
    return TOKENS.name if protocol.has_only_tokens(read_column_mapping(columns)) else TEXT.name


def read_records(stream: BinaryIO, context: DumpContext, columns: str) -> Iterator[Record | LineProblem | SkippedRow]:
    head = stream.read(START_BYTES)
    rows = split_wide_rows(read_table_rows(rewind_stream(head, stream), head, context), columns)
    window = list(take_window(rows))
    first_rows = [row[1] for row in window if not isinstance(row, LineProblem)]
    layouts = list(dict.fromkeys(map(tuple, first_rows)))
    names = list(dict.fromkeys(chain.from_iterable(layouts)))
    if not names:
        problem = next((row for row in window if isinstance(row, LineProblem)), None)
        found = f" It begins with a problem: line {problem.line} {problem.reason}." if problem else ""
        raise UnreadableDumpError(f"It has no rows.{found}")
    parts = resolve_column_mapping(names, columns)
    renamer = KeyRenamer(parts, layouts, is_used=not columns)
    first_rows = [renamer.rename(row) for row in first_rows]
    names = [name for name in names if name not in renamer.other_names]
    unnester = ResponseUnnester(parts, first_rows)
    first_samples = [sample for row in first_rows for sample, _ in unnester.split(row)]
    mapping = TableMapping(parts, names, first_samples, is_csv=is_csv(head))
    for row in chain(window, rows):
        if isinstance(row, LineProblem):
            yield row
            continue
        number, values = row
        samples = list(unnester.split(renamer.rename(values)))
        if not samples:
            yield SkippedRow("a row with an empty list of responses")
        for sample, index in samples:
            try:
                record = mapping.build_record(sample, context)
            except ValueError as error:
                yield LineProblem(number, str(error))
                continue
            if index is not None:  # responses of one row are a group if there is no prompt
                record.index = index if record.index is None else record.index
                record.group = record.group or (None if record.prompt or record.prompt_ids else str(number))
            yield record


class KeyRenamer:
    """Gives the parts of a row the names of their columns, where rows use different ones: `score` and `reward`.

    `layouts`: the keys of the first rows. Those of later rows are added, so that the end of a long file is read like
    its start. `is_used`: without an explicit mapping.
    """

    def __init__(self, parts: Mapping[str, str], layouts: Iterable[tuple[str, ...]], *, is_used: bool) -> None:
        self.parts, self.layouts, self.is_used = parts, set(layouts), is_used
        self.other_names = protocol.find_other_names(self.layouts, parts) if is_used and len(self.layouts) > 1 else {}

    def rename(self, row: JsonObject) -> JsonObject:
        if not self.is_used:
            return row
        if (layout := tuple(row)) not in self.layouts and len(self.layouts) < MAX_LAYOUTS:
            self.layouts.add(layout)
            self.other_names = protocol.find_other_names(self.layouts, self.parts)
        return dict(protocol.rename_keys(row, self.other_names, self.parts)) if self.other_names else row


def split_wide_rows(rows: Iterator[NumberedRow], columns: str) -> Iterator[NumberedRow]:
    """Yields rows of one generation; they keep the number of their row."""
    mapping = read_column_mapping(columns)
    for row in rows:
        if isinstance(row, LineProblem):
            yield row
        else:
            yield from ((row[0], part) for part in split_wide_row(row[1], mapping))


def take_window(rows: Iterator[NumberedRow]) -> Iterator[NumberedRow]:
    """Yields the first rows, at most `WINDOW_ROWS`, or until they have `WINDOW_CHARS`."""
    count, chars = 0, 0
    for row in rows:
        yield row
        if isinstance(row, LineProblem):
            continue
        count, chars = count + 1, chars + sum(map(count_chars, row[1].values()))
        if count >= WINDOW_ROWS or chars > WINDOW_CHARS:
            return
