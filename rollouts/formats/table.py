"""Any table of generations: CSV, JSON lines, Parquet, or the JSON of a logged table (`{"columns", "data"}`).

Which column is what is told with the upload (`columns`, see columns.py), else found by name; every other column is
kept. Rows say their step where the upload does not; a table without either is step 0. Columns of rewards by name
(`reward_format`, `format_reward`) are parts of the reward. In a CSV an empty cell is nothing, but an empty response
where the response stands; a cell that holds a JSON list or object is one where the part asks for one.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from rolloutdeck import wire
from rolloutdeck.columns import PRESETS, REWARDS, looks_generated
from rollouts.errors import UnreadableDump
from rollouts.formats import chat, jsonl, native, whole_json
from rollouts.formats.at_hand import at_hand
from rollouts.formats.base import HEAD_BYTES, Told
from rollouts.formats.columns import mapping
from rollouts.formats.columns import told as told_columns
from rollouts.formats.parquet_rows import opened as parquet_file
from rollouts.formats.parquet_rows import rows as parquet_file_rows
from rollouts.formats.values import plain
from rollouts.records import LeftOut, Problem, Record

PARQUET = b"PAR1"
WINDOW = 256  # lines of which the columns are looked at
WINDOW_CHARS = 16 << 20  # of their texts; longer ones are enough by themselves
LOGGED = re.compile(rb'\{\s*(?:"columns"\s*:\s*\[|"data"\s*:\s*\[\s*[\[\]]|"_type"\s*:\s*"table)')
TOKEN = re.compile(rb'"(?P<key>[^"\\]{1,80})"\s*:|"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
PART = re.compile(r"(?:reward_(?P<after>\w+)|(?P<before>\w+)_reward)\Z")
NOTED = ("step",)  # parts that the record has no field for
STRUCTURED = frozenset(
    ("messages", "prompt_ids", "response_ids", "response_mask", "logprobs", "advantages", "rewards", "tools")
)

Row = dict[str, Any]
Numbered = tuple[int, Row] | Problem


@dataclass(frozen=True, slots=True)
class TableFormat:
    """Tables of text, and those that hold only token ids, whose text comes with the run's tokenizer."""

    name: str

    def sniff(self, filename: str, head: bytes) -> bool:
        """Whether the first row has what a generation needs; of a Parquet file, which ends with the names of its
        columns, nothing is known yet. Formats that go by a trainer's name are told."""
        if self.name in PRESETS or head.startswith(PARQUET):
            return self.name == "table"
        try:
            found = mapping(first_names(filename, head))
        except UnreadableDump:
            return False
        return looks_generated(found) and (self.name == "token-table") == only_tokens(found)

    def read(self, stream: BinaryIO, told: Told) -> Iterator[Record | Problem | LeftOut]:
        """Records in the order of the rows. Raises UnreadableDump."""
        columns = told.columns or (self.name if self.name in PRESETS else "")
        yield from records(stream, told, columns)


TOKENS, TEXT = TableFormat("token-table"), TableFormat("table")
FORMATS = (TOKENS, *map(TableFormat, PRESETS), TEXT)
TEXTLESS = (TOKENS.name, "open-instruct")


def first_names(filename: str, head: bytes) -> list[str]:
    """The columns of the first row, or those that the beginning of a longer one names. Raises UnreadableDump."""
    try:
        for row in table(io.BytesIO(head), head, Told(filename)):
            if not isinstance(row, Problem):
                return list(row[1])
    except UnreadableDump:
        if len(head) < HEAD_BYTES:
            raise
    begun = re.match(rb"\s*(?:\[\s*)?(?=\{)", head.removeprefix(jsonl.BOM))
    return cut_names(head.removeprefix(jsonl.BOM)[begun.end() :]) if begun else []


def cut_names(start: bytes) -> list[str]:
    """The keys of an object of which this is the beginning."""
    depth, names = 0, []
    for token in TOKEN.finditer(start):
        depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
        if depth == 0:
            break
        if depth == 1 and token["key"]:
            names.append(token["key"].decode("utf-8", "replace"))
    return names


def format_of(columns: str) -> str:
    """The format of a table of which these columns were told; empty where none were. Raises UnreadableDump."""
    if not columns:
        return ""
    return TOKENS.name if only_tokens(told_columns(columns)) else TEXT.name


def only_tokens(found: dict[str, str]) -> bool:
    return "response_ids" in found and "response" not in found and "messages" not in found


def records(stream: BinaryIO, told: Told, columns: str) -> Iterator[Record | Problem]:
    head = stream.read(WINDOW)
    found = table(joined(head, stream), head, told)
    first, seen, held = list[Numbered](), 0, 0
    for row in found:
        first.append(row)
        if isinstance(row, Problem):
            continue
        seen, held = seen + 1, held + sum(len(value) for value in row[1].values() if isinstance(value, str))
        if seen >= WINDOW or held > WINDOW_CHARS:
            break
    names = dict.fromkeys(key for row in first if not isinstance(row, Problem) for key in row[1])
    if not names:
        raise UnreadableDump("It holds no row.")
    shape = Shape(mapping(names, columns), list(names), textual=is_csv(head))
    for row in chain(first, found):
        if isinstance(row, Problem):
            yield row
            continue
        try:
            yield shape.record(row[1], told)
        except ValueError as error:
            yield Problem(row[0], str(error))


def joined(head: bytes, rest: BinaryIO) -> BinaryIO:
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


def table(stream: BinaryIO, head: bytes, told: Told) -> Iterator[Numbered]:
    """Number from 1 and values by column of each row. Raises UnreadableDump."""
    if head.startswith(PARQUET):
        return parquet_rows(stream, told)
    start = head.removeprefix(jsonl.BOM).lstrip()
    if LOGGED.match(start):
        return logged_rows(stream)
    if start.startswith(b"["):
        return listed_rows(stream)
    return jsonl.rows(stream) if start.startswith(b"{") else csv_rows(stream)


def is_csv(head: bytes) -> bool:
    return not head.startswith(PARQUET) and not head.removeprefix(jsonl.BOM).lstrip().startswith((b"{", b"["))


def csv_rows(stream: BinaryIO) -> Iterator[Numbered]:
    """Rows of a comma, semicolon or tab separated file with a line of names."""
    text = text_lines(stream)
    csv.field_size_limit(wire.MAX_LINE_BYTES)
    begun = next(text, "")
    separator = max(",;\t", key=begun.count)
    try:
        names = next(csv.reader([begun], delimiter=separator), [])
        for cells in (reader := csv.reader(text, delimiter=separator)):
            if not any(cells):  # spreadsheets leave such lines behind
                continue
            if len(cells) == len(names):
                yield reader.line_num + 1, {key: cell or None for key, cell in zip(names, cells, strict=True)}
            else:
                yield Problem(reader.line_num + 1, f"has {len(cells)} cells where {len(names)} columns are named")
    except csv.Error as error:
        raise UnreadableDump(f"It is no CSV that can be read: {error}.") from None


def text_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines with their ends. Raises UnreadableDump for one that is too long."""
    first = True
    while line := stream.readline(wire.MAX_LINE_BYTES + 1):
        if len(line) > wire.MAX_LINE_BYTES:
            raise UnreadableDump(f"It is no CSV that can be read: a line is over {wire.MAX_LINE_BYTES >> 20} MiB long.")
        yield (line.removeprefix(jsonl.BOM) if first else line).decode("utf-8", "replace")
        first = False


def parquet_rows(stream: BinaryIO, told: Told) -> Iterator[Numbered]:
    with at_hand(stream, told) as path, parquet_file(path) as file:
        for number, row in enumerate(parquet_file_rows(file), 1):
            yield number, {key: plain(value) for key, value in row.items()}


def listed_rows(stream: BinaryIO) -> Iterator[Numbered]:
    """A JSON list of objects."""
    for number, row in enumerate(whole_json.value(stream)[0], 1):
        yield (number, row) if isinstance(row, dict) else Problem(number, f"is {jsonl.kind(row)}, not an object")


def logged_rows(stream: BinaryIO) -> Iterator[Numbered]:
    """A table as trackers keep it: names, and a list of values per row. Else it is an object: a table of one row."""
    value = whole_json.value(stream)[0]
    names, data = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(data, list):
        raise UnreadableDump("It has no `columns` and `data`.")
    for number, cells in enumerate(data, 1):
        if isinstance(cells, list) and len(cells) == len(names):
            yield number, dict(zip(map(str, names), cells, strict=True))
        else:
            yield Problem(number, f"is no list of {len(names)} values")


class Shape:
    """How the rows of one table become records."""

    def __init__(self, found: dict[str, str], names: list[str], *, textual: bool) -> None:
        self.found, self.textual = found, textual
        self.taken = set(found.values())
        self.parts = {part.removeprefix(REWARDS): column for part, column in found.items() if part.startswith(REWARDS)}
        self.parts |= {named(column): column for column in names if column not in self.taken and PART.match(column)}

    def record(self, row: Row, told: Told) -> Record:
        """Raises ValueError."""
        made = native.record(self.native(row))
        made.textless = only_tokens(self.found)
        if made.textless and told.decode:
            made.prompt, made.response = told.decode([made.prompt_ids or [], made.response_ids or []])
            made.textless = False
        self.keep(made, row)
        if told.step is None:
            step = jsonl.integer(jsonl.number(made.extras.get("step")))
            made.extras["step"] = 0 if step is None else step
        return made

    def native(self, row: Row) -> Row:
        """The row under the names of `wire.SAMPLE_KEYS`. Raises ValueError."""
        cells = {part: row[column] for part, column in self.found.items() if column in row}
        values = {
            part: self.cell(part, value)
            for part, value in cells.items()
            if not part.startswith(REWARDS) and (value is not None or part == "response")
        }
        if isinstance(parts := row.get(self.found.get("score", "")), dict):
            values |= {"score": None, "rewards": parts}
        talk = values.get("messages")
        if chat.is_talk(talk) and talk and values.get("response") is None:
            at = chat.parted(talk)
            values |= {"prompt": chat.asked(talk[:at]), "response": chat.answered(talk[at:])}
        if not {"response", "response_ids"} & set(values):
            raise ValueError("has no response")
        return {"prompt": "", "response": None, **values}

    def cell(self, part: str, value: Any) -> Any:
        if part == "step":
            return jsonl.number(value)
        if not isinstance(value, str):
            return value
        if part in STRUCTURED or (part in ("prompt", "response") and value.startswith(('[{"', "[{'"))):
            return unpacked(value)
        if self.textual and part in ("index", "turn", "policy_version"):
            whole = jsonl.integer(jsonl.number(value))
            return value if whole is None else whole
        return value

    def keep(self, made: Record, row: Row) -> None:
        """Parts of the reward, and every column that is none of a sample's own."""
        for part, column in self.parts.items():
            value = row.get(column)
            if value is None or jsonl.number(value) is not None:
                made.rewards[part] = jsonl.number(value)
        for column, value in row.items():
            if column in self.taken or value is None:
                continue
            if column not in self.parts.values() or jsonl.number(value) is None:
                made.extras[column] = plain(value)


def named(column: str) -> str:
    found = PART.match(column)
    return (found["after"] or found["before"]) if found else column


def unpacked(text: str) -> Any:
    """JSON in a cell; what is none stays text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
