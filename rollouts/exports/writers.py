"""Writes rows as JSONL, Parquet or CSV. The same rows give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import IO, Any, Protocol, cast

import orjson
import polars as pl
import pyarrow as pa

from rollouts.exports.rows import Batch, Row
from rollouts.samples import DrainableBuffer, dump_json, open_parquet_writer, to_arrow


class RowWriter(Protocol):
    def write(self, batch: Batch) -> Sequence[bytes]:
        """Returns the bytes of these rows in pieces, as far as they are complete. A table has the writer's columns."""

    def finish(self) -> Sequence[bytes]:
        """Returns the rest of the file in pieces."""

    def get_columns(self) -> pa.Schema | None:
        """Returns the types of the columns, None if the file has them. Call it after `finish`."""


class JsonlWriter:
    """Values of text columns that are no text are JSON: a column has one type, which `load_dataset` needs. Messages
    have the fields that some message has: chat templates ask whether there are `tool_calls`."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.columns = [(field.name, field.type == pa.string()) for field in schema]
        self.message_columns = [field.name for field in schema if is_messages(field.type)]
        self.message_fields: set[str] = set()

    def write(self, batch: Batch) -> Sequence[bytes]:
        if isinstance(batch, pl.DataFrame):
            return write_table_lines(batch)
        for name in self.message_columns:
            self.message_fields.update(key for row in batch for message in row.get(name) or () for key in message)
        lines = (orjson.dumps(self.convert(row), option=orjson.OPT_APPEND_NEWLINE, default=str) for row in batch)
        return [b"".join(lines)]

    def convert(self, row: Row) -> Row:
        return {name: to_text(row.get(name)) if is_text else row.get(name) for name, is_text in self.columns}

    def finish(self) -> Sequence[bytes]:
        return []

    def get_columns(self) -> pa.Schema:
        return pa.schema(
            field.with_type(keep_fields(field.type, self.message_fields)) if is_messages(field.type) else field
            for field in self.schema
        )


def is_messages(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))


def keep_fields(messages: pa.DataType, names: set[str]) -> pa.DataType:
    """Without a message all fields stay: `datasets` refuses an empty struct."""
    if not names:
        return messages
    return pa.list_(pa.struct([field for field in messages.value_type if field.name in names]))


class ParquetWriter:
    """One row group per call. Values of text columns that are no text are JSON."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.buffer = DrainableBuffer()
        self.writer = open_parquet_writer(self.buffer, schema)
        self.texts = [field.name for field in schema if field.type == pa.string()]

    def write(self, batch: Batch) -> Sequence[bytes]:
        if isinstance(batch, pl.DataFrame):
            self.writer.write_table(to_arrow(batch, self.schema))
        elif batch:
            columns = {name: [row.get(name) for row in batch] for name in self.schema.names}
            for name in self.texts:
                columns[name] = [to_text(value) for value in columns[name]]
            self.writer.write_table(pa.Table.from_pydict(columns, schema=self.writer.schema))
        return self.buffer.take_pieces()

    def finish(self) -> Sequence[bytes]:
        self.writer.close()
        return self.buffer.take_pieces()

    def get_columns(self) -> None:
        return None


def write_table_lines(table: pl.DataFrame) -> list[bytes]:
    lines = DrainableBuffer()
    table.write_ndjson(cast(IO[bytes], lines))
    return lines.take_pieces()


def to_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else dump_json(value)


class CsvWriter:
    """Lists and messages are JSON; nothing is an empty field."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self.columns = schema, schema.names
        self.text = io.StringIO(newline="")
        self.writer = csv.writer(self.text)
        self.writer.writerow(self.columns)

    def write(self, batch: Batch) -> Sequence[bytes]:
        for row in batch.iter_rows(named=True) if isinstance(batch, pl.DataFrame) else batch:
            self.writer.writerow([to_text(row.get(name)) for name in self.columns])
        return [self.take()]

    def finish(self) -> Sequence[bytes]:
        return [self.take()]

    def get_columns(self) -> pa.Schema:
        return pa.schema(
            field.with_type(pa.string()) if pa.types.is_nested(field.type) else field for field in self.schema
        )

    def take(self) -> bytes:
        data = self.text.getvalue().encode("utf-8", "surrogatepass")
        self.text.seek(0)
        self.text.truncate()
        return data


def open_writer(file_format: str, schema: pa.Schema) -> RowWriter:
    match file_format:
        case "parquet":
            return ParquetWriter(schema)
        case "csv":
            return CsvWriter(schema)
        case _:
            return JsonlWriter(schema)
