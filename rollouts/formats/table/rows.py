"""Reads the rows of a table from CSV, JSON Lines, Parquet, Arrow, or one JSON document.

A JSON document may be a list of objects; `{"columns", "data"}`, as trackers and pandas write it; an object of columns,
also by row name, as pandas writes it; an object of rows by name; or an object with a list of such rows under one of its
keys.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from rolloutdeck.protocol import MAX_LINE_BYTES, guess_columns, has_generation_columns, number_repeated_names
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    ARROW_STREAM_MAGIC,
    BOM,
    BROKEN_UTF8,
    JsonObject,
    NumberedRow,
    check_json_memory,
    get_list,
    open_parquet,
    parse_json_document,
    provide_local_file,
    read_arrow_rows,
    read_document_bytes,
    read_json_document,
    read_jsonl_rows,
    read_parquet_rows,
    to_jsonable,
)
from rollouts.samples import LineProblem, describe_json_type

PARQUET_MAGIC = b"PAR1"
BINARY_MAGICS = (PARQUET_MAGIC, ARROW_STREAM_MAGIC)
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
LOGGED_TABLE = re.compile(rb'\{\s*(?:"columns"\s*:\s*\[|"data"\s*:\s*\[\s*[\[\]]|"_type"\s*:\s*"table)')
NEXT_VALUE = re.compile(r"\s*[\[,]\s*(?=[^\s\]])")  # before a value of a list
MAX_BLANK_BYTES = 1 << 12  # between the first lines
OPEN_ENDS = (b"{", b"[", b",")  # ends of the first line of an object with several lines


def read_table_rows(stream: BinaryIO, head: bytes, context: DumpContext) -> Iterator[NumberedRow]:
    """Yields number (from 1) and values by column of each row. Raises UnreadableDumpError."""
    if head.startswith(PARQUET_MAGIC):
        return read_parquet_table(stream, context)
    if head.startswith(ARROW_STREAM_MAGIC):
        return read_arrow_table(stream, context)
    if head.startswith(UTF_16_MARKS):
        raise UnreadableDumpError("It is written in UTF-16; save it as UTF-8.")
    start = strip_start(head)
    if LOGGED_TABLE.match(start):
        return read_logged_table(read_json_document(stream)[0])
    if start.startswith(b"["):
        return read_json_list(stream)
    return read_json_objects(stream) if start.startswith(b"{") else read_csv(stream)


def strip_start(head: bytes) -> bytes:
    return head.removeprefix(BOM).lstrip()


def is_csv(head: bytes) -> bool:
    return not head.startswith(BINARY_MAGICS) and not strip_start(head).startswith((b"{", b"["))


def rewind_stream(head: bytes, rest: BinaryIO) -> BinaryIO:
    """Returns the stream from its beginning; `head` was read from it."""
    if rest.seekable():
        rest.seek(0)
        return rest
    return io.BufferedReader(ChainedStream(head, rest))


class ChainedStream(io.RawIOBase):
    """A head, then the stream that it was read from."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.head[: len(buffer)] or self.rest.read(len(buffer))
        self.head = self.head[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def read_csv(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Yields the rows of a file that is separated by comma, semicolon or tab and starts with the column names."""
    lines = DecodedLines(stream)
    csv.field_size_limit(MAX_LINE_BYTES)
    first = next(lines, "")
    separator = max(",;\t", key=first.count)
    try:
        names = number_repeated_names(next(csv.reader([first], delimiter=separator), []))
        lines.take_damage()
        for cells in (reader := csv.reader(lines, delimiter=separator)):
            if not any(cells):  # spreadsheets write such lines
                continue
            number = reader.line_num + 1
            if lines.take_damage():
                yield LineProblem(number, BROKEN_UTF8, repaired=True)
            if len(cells) == len(names):
                yield number, {name: cell or None for name, cell in zip(names, cells, strict=True)}
            else:
                hint = "; perhaps a quote is not closed" if any("\n" in cell for cell in cells) else ""
                yield LineProblem(number, f"has {len(cells)} cells; the table has {len(names)} columns{hint}")
    except csv.Error as error:
        raise UnreadableDumpError(f"It is not a readable CSV file: {error}.") from None


class DecodedLines:
    """The lines of a stream with their ends. Raises UnreadableDumpError if one is too long."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.is_first, self.is_damaged = True, False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self.stream.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        if len(line) > MAX_LINE_BYTES:
            raise UnreadableDumpError(f"It is not a readable CSV file: a line is over {MAX_LINE_BYTES >> 20} MiB long.")
        line, self.is_first = line.removeprefix(BOM) if self.is_first else line, False
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.is_damaged = True
            return line.decode("utf-8", "replace")

    def take_damage(self) -> bool:
        """Returns whether a line since the last call was not UTF-8."""
        is_damaged, self.is_damaged = self.is_damaged, False
        return is_damaged


def read_parquet_table(stream: BinaryIO, context: DumpContext) -> Iterator[NumberedRow]:
    with provide_local_file(stream, context) as path, open_parquet(path) as file:
        for number, row in enumerate(read_parquet_rows(file), 1):
            yield number, {key: to_jsonable(value) for key, value in row.items()}


def read_arrow_table(stream: BinaryIO, context: DumpContext) -> Iterator[NumberedRow]:
    """Yields the complete rows of a truncated stream, then a problem."""
    number = 0
    with provide_local_file(stream, context) as path:
        try:
            for number, row in enumerate(read_arrow_rows(path), 1):
                yield number, {key: to_jsonable(value) for key, value in row.items()}
        except UnreadableDumpError as error:
            if not number:
                raise
            yield LineProblem(number + 1, str(error))


def read_json_objects(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Yields the rows of a file with one object per line, or with one object."""
    start, first = read_filled_line(stream, MAX_LINE_BYTES + 1)
    between, second = read_filled_line(stream, 1 << 16)
    rewound = io.BufferedReader(ChainedStream(start + first + between + second, stream))
    has_more_lines = second and not first.rstrip().endswith(OPEN_ENDS)
    if has_more_lines or (not second and not is_json_object(first)):
        return read_jsonl_rows(rewound)
    return read_json_object(read_json_document(rewound)[0])


def read_filled_line(stream: BinaryIO, limit: int) -> tuple[bytes, bytes]:
    """Returns the next line that is not blank, and the blank ones before it. Empty at the end, or after many."""
    blank = b""
    while (line := stream.readline(limit)).isspace():
        blank += line
        if len(blank) > MAX_BLANK_BYTES:
            return blank, b""
    return blank, line


def is_json_object(line: bytes) -> bool:
    try:
        check_json_memory(line)
        return isinstance(orjson.loads(line.removeprefix(BOM)), dict)
    except ValueError:
        return False


def read_json_list(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Yields the objects of a list. Of a truncated list, yields the complete ones, then a problem."""
    body = read_document_bytes(stream)
    try:
        yield from number_rows(parse_json_document(body)[0])
        return
    except UnreadableDumpError as error:
        values, reason = list(parse_list_start(body.decode("utf-8", "replace"))), str(error)
    if not values:
        raise UnreadableDumpError(reason)
    yield from number_rows(values)
    yield LineProblem(len(values) + 1, f"is truncated: what follows is not JSON. {reason}")


def parse_list_start(text: str) -> Iterator[Any]:
    """Yields the values of a list, up to the first invalid one."""
    decoder, position = json.JSONDecoder(strict=False), text.find("[")
    while match := NEXT_VALUE.match(text, position):
        try:
            value, position = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            return
        yield value


def number_rows(rows: Any) -> Iterator[NumberedRow]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            yield number, row
        else:
            yield LineProblem(number, f"is {describe_json_type(row)}, not an object")


def read_logged_table(value: JsonObject) -> Iterator[NumberedRow]:
    """Yields the rows of a table as trackers store it: column names, and a list of values per row."""
    names, data = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(data, list):
        raise UnreadableDumpError("It has no `columns` and `data`.")
    for number, cells in enumerate(data, 1):
        if isinstance(cells, list) and len(cells) == len(names):
            yield number, dict(zip(map(str, names), cells, strict=True))
        else:
            yield LineProblem(number, f"is not a list of {len(names)} values")


def read_json_object(value: Any) -> Iterator[NumberedRow]:
    """Yields the rows of one object: columns by row name, rows by name, rows under a key, or the object as one row."""
    if has_generation_columns(value):
        return enumerate(transpose_columns(value) or [value], 1)
    if has_only_objects(value) and has_generation_columns(next(iter(value.values()))):
        return enumerate(({"key": key, **row} for key, row in value.items()), 1)
    rows = max(find_row_lists(value), key=len, default=None)
    return number_rows(rows) if rows else iter([(1, value)])


def transpose_columns(columns: JsonObject) -> list[JsonObject]:
    """Returns the rows of `{"prompt": {"0": …, "1": …}, "response": …}`; [] for any other object."""
    first = next(iter(columns.values()), None)
    if not has_only_objects(columns) or not first or any(column.keys() != first.keys() for column in columns.values()):
        return []
    return [{name: column[row] for name, column in columns.items()} for row in first]


def has_only_objects(value: JsonObject) -> bool:
    return bool(value) and all(isinstance(inner, dict) for inner in value.values())


def find_row_lists(value: JsonObject, depth: int = 2) -> Iterator[list[Any]]:
    """Yields the lists of rows with their own prompt. Without one, they are samples of the object, which is a row."""
    for key, inner in value.items():
        first = get_list(value, key)[:1]
        columns = first[0] if first and isinstance(first[0], dict) else {}
        if has_generation_columns(columns) and {"prompt", "messages"} & guess_columns(columns, {}).keys():
            yield inner
        elif isinstance(inner, dict) and depth:
            yield from find_row_lists(inner, depth - 1)
