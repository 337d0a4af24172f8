"""The rows of a table, whatever file it came in: CSV, JSON lines, Parquet, Arrow, or JSON that is read at once.

JSON that is read at once: a list of objects; `{"columns", "data"}` as trackers keep tables and pandas splits them; an
object of columns, also by row name as pandas writes them; an object of rows by name; an object that holds such rows
under one of its keys beside what else a tool tells of its run.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import orjson

from rolloutdeck.protocol import MAX_LINE_BYTES, guess_columns, has_generation_columns
from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import arrow, json_document, jsonl
from rollouts.formats.readers.parquet import open_parquet as parquet_file
from rollouts.formats.readers.parquet import read_parquet_rows as parquet_file_rows
from rollouts.formats.readers.seekable import provide_local_file
from rollouts.formats.readers.values import to_jsonable
from rollouts.samples import LineProblem, describe_json_type

PARQUET_MAGIC = b"PAR1"
LOGGED = re.compile(rb'\{\s*(?:"columns"\s*:\s*\[|"data"\s*:\s*\[\s*[\[\]]|"_type"\s*:\s*"table)')
NEXT = re.compile(r"\s*[\[,]\s*(?=[^\s\]])")  # before a value of a list
REPLACED = "\ufffd"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BEGUN = (b"{", b"[", b",")  # ends of the first line of an object that goes on

Row = dict[str, Any]
NumberedRow = tuple[int, Row] | LineProblem


def read_table_rows(stream: BinaryIO, head: bytes, context: DumpContext) -> Iterator[NumberedRow]:
    """Number from 1 and values by column of each row. Raises UnreadableDumpError."""
    if head.startswith(PARQUET_MAGIC):
        return parquet_rows(stream, context)
    if head.startswith(arrow.ARROW_STREAM_MAGIC):
        return batched_rows(stream, context)
    if head.startswith(UTF_16):
        raise UnreadableDumpError("It is written in UTF-16; save it as UTF-8.")
    start = head.removeprefix(jsonl.BOM).lstrip()
    if LOGGED.match(start):
        return logged_rows(json_document.read_json_document(stream)[0])
    if start.startswith(b"["):
        return json_list(stream)
    return json_rows(stream) if start.startswith(b"{") else csv_rows(stream)


def is_csv(head: bytes) -> bool:
    return not head.startswith((PARQUET_MAGIC, arrow.ARROW_STREAM_MAGIC)) and not head.removeprefix(
        jsonl.BOM
    ).lstrip().startswith((b"{", b"["))


def rewind_stream(head: bytes, rest: BinaryIO) -> BinaryIO:
    """The stream once more from its beginning."""
    if rest.seekable():
        rest.seek(0)
        return rest
    return io.BufferedReader(Chained(head, rest))


class Chained(io.RawIOBase):
    """A beginning, then the stream that it was read from."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.head, self.rest = head, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.head[: len(buffer)] or self.rest.read(len(buffer))
        self.head = self.head[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)


def csv_rows(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Rows of a comma, semicolon or tab separated file with a line of names."""
    text = text_lines(stream)
    csv.field_size_limit(MAX_LINE_BYTES)
    begun = next(text, "")
    separator = max(",;\t", key=begun.count)
    try:
        names = next(csv.reader([begun], delimiter=separator), [])
        for cells in (reader := csv.reader(text, delimiter=separator)):
            if not any(cells):  # spreadsheets leave such lines behind
                continue
            if any(REPLACED in cell for cell in cells):
                yield LineProblem(reader.line_num + 1, jsonl.BROKEN_UTF8, repaired=True)
            if len(cells) == len(names):
                yield reader.line_num + 1, {key: cell or None for key, cell in zip(names, cells, strict=True)}
            else:
                yield LineProblem(reader.line_num + 1, f"has {len(cells)} cells where {len(names)} columns are named")
    except csv.Error as error:
        raise UnreadableDumpError(f"It is no CSV that can be read: {error}.") from None


def text_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines with their ends. Raises UnreadableDumpError for one that is too long."""
    first = True
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise UnreadableDumpError(f"It is no CSV that can be read: a line is over {MAX_LINE_BYTES >> 20} MiB long.")
        yield (line.removeprefix(jsonl.BOM) if first else line).decode("utf-8", "replace")
        first = False


def parquet_rows(stream: BinaryIO, context: DumpContext) -> Iterator[NumberedRow]:
    with provide_local_file(stream, context) as path, parquet_file(path) as file:
        for number, row in enumerate(parquet_file_rows(file), 1):
            yield number, {key: to_jsonable(value) for key, value in row.items()}


def batched_rows(stream: BinaryIO, context: DumpContext) -> Iterator[NumberedRow]:
    """Of a stream that breaks off the rows before."""
    number = 0
    with provide_local_file(stream, context) as path:
        try:
            for number, row in enumerate(arrow.read_arrow_rows(path), 1):
                yield number, {key: to_jsonable(value) for key, value in row.items()}
        except UnreadableDumpError as error:
            if not number:
                raise
            yield LineProblem(number + 1, str(error))


def json_rows(stream: BinaryIO) -> Iterator[NumberedRow]:
    """Objects, one a line, or one object over the whole file."""
    first = stream.readline(MAX_LINE_BYTES + 1)
    behind = stream.readline(1 << 16)
    again = io.BufferedReader(Chained(first + behind, stream))
    if behind.strip() and not first.rstrip().endswith(BEGUN):
        return jsonl.read_jsonl_rows(again)
    if not behind and not whole_object(first):
        return jsonl.read_jsonl_rows(again)
    return object_rows(json_document.read_json_document(again)[0])


def whole_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line.removeprefix(jsonl.BOM)), dict)
    except orjson.JSONDecodeError:
        return False


def json_list(stream: BinaryIO) -> Iterator[NumberedRow]:
    """A list of objects; of one that breaks off those that are whole."""
    body = json_document.read_document_bytes(stream)
    try:
        yield from listed_rows(json_document.parse_json_document(body)[0])
        return
    except UnreadableDumpError as error:
        whole, reason = list(beginning(body.decode("utf-8", "replace"))), str(error)
    if not whole:
        raise UnreadableDumpError(reason)
    yield from listed_rows(whole)
    yield LineProblem(len(whole) + 1, f"and what follows is no JSON: the file breaks off. {reason}")


def beginning(text: str) -> Iterator[Any]:
    """The values of a list up to where it is none."""
    decoder, at = json.JSONDecoder(strict=False), text.find("[")
    while found := NEXT.match(text, at):
        try:
            value, at = decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            return
        yield value


def listed_rows(found: Any) -> Iterator[NumberedRow]:
    """A list of objects."""
    for number, row in enumerate(found, 1):
        yield (
            (number, row)
            if isinstance(row, dict)
            else LineProblem(number, f"is {describe_json_type(row)}, not an object")
        )


def logged_rows(value: Mapping[str, Any]) -> Iterator[NumberedRow]:
    """A table as trackers keep it: names, and a list of values per row. Else it is an object: a table of one row."""
    names, data = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(data, list):
        raise UnreadableDumpError("It has no `columns` and `data`.")
    for number, cells in enumerate(data, 1):
        if isinstance(cells, list) and len(cells) == len(names):
            yield number, dict(zip(map(str, names), cells, strict=True))
        else:
            yield LineProblem(number, f"is no list of {len(names)} values")


def object_rows(value: Any) -> Iterator[NumberedRow]:
    """One object: columns by row name, rows by name, what holds rows under a key, else a row itself."""
    if has_generation_columns(value):
        return enumerate(by_row_name(value) or [value], 1)
    if all_objects(value) and has_generation_columns(next(iter(value.values()))):
        return enumerate(({"key": key, **row} for key, row in value.items()), 1)
    held = max(lists_of_rows(value), key=len, default=None)
    return listed_rows(held) if held else iter([(1, value)])


def by_row_name(columns: Row) -> list[Row]:
    """The rows of `{"prompt": {"0": …, "1": …}, "response": …}`; none of every other object."""
    first = next(iter(columns.values()), None)
    if not all_objects(columns) or not first or any(column.keys() != first.keys() for column in columns.values()):
        return []
    return [{name: column[row] for name, column in columns.items()} for row in first]


def all_objects(value: Row) -> bool:
    return bool(value) and all(isinstance(one, dict) for one in value.values())


def lists_of_rows(value: Row, depth: int = 2) -> Iterator[list[Any]]:
    """Those whose rows have a prompt of their own; others are samples of the object, which is a row then."""
    for inner in value.values():
        first = inner[0] if isinstance(inner, list) and inner else None
        if (
            isinstance(first, dict)
            and has_generation_columns(first)
            and {"prompt", "messages"} & guess_columns(first, {}).keys()
        ):
            yield inner
        elif isinstance(inner, dict) and depth:
            yield from lists_of_rows(inner, depth - 1)
