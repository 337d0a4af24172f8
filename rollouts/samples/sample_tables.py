"""Reads full samples as tables, without an object for each sample, which takes a twentieth of the time. Exports them as
JSONL or Parquet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from django.contrib.auth.models import AnonymousUser, User
from django.db.models import ExpressionWrapper, F, TextField

from rollouts.models import Dump, DuplicateSource, Label, Sample, SampleQuerySet, Step
from rollouts.samples.bodies import BodyReader, read_ahead, read_bodies, to_frame
from rollouts.samples.export import (
    EXPORT_SCHEMA,
    JSON_COLUMNS,
    SAMPLE_FIELDS,
    STEP_FIELDS,
    DrainableBuffer,
    dump_json,
    load_exported_labels,
    load_full_samples,
    prefetch_step_relations,
)
from rollouts.samples.parquet import ARRAYS, BODY_JSON_COLUMNS, MAX_WHOLE_NUMBER, is_json_column
from rollouts.samples.rescore_blocks import load_rescore_names, load_rescore_values, name_values
from rollouts.samples.responses import TEXT_PROPERTY_BITS
from rollouts.samples.values import parse_json, to_stored_json

CHUNK_ROWS: Final = 4096  # of index rows, for which steps and dumps are loaded together
BATCH_ROWS: Final = 1024
BATCH_CHARS: Final = 8 << 20  # of responses: long texts make smaller batches
INDEX_FIELDS: Final = ("pk", "dump_id", "ordinal", "step_id", *SAMPLE_FIELDS, "facets", "data_source", "rescores")
PK, DUMP, ORDINAL, STEP, CHARS, RESCORES = 0, 1, 2, 3, INDEX_FIELDS.index("chars"), -1  # positions in them
RAW_FIELDS: Final = frozenset({"final", "correct", "truncated", "rescores"})
BODY_COLUMNS: Final = (
    "prompt",
    "response",
    "ground_truth",
    "finish_reason",
    "turn",
    "policy_version",
    *BODY_JSON_COLUMNS,
    *ARRAYS,
)
# The index rows have these values.
UNREAD_COLUMNS: Final = frozenset({"prompt_key", "score", "trajectory", "data_source", "index", "truncated"})
# Earlier versions stored halves of surrogate pairs, NaN and huge integers, which are no JSON of `orjson`. Texts may
# have the same words.
ODD_JSON: Final = r"\\u[dD]|NaN|Infinity|\d{309}"
TABLE_SCHEMA: Final = pl.Schema(EXPORT_SCHEMA)

IndexRow = tuple[Any, ...]
Labels = Mapping[str, list[dict[str, Any]]]


class BatchBody(NamedTuple):
    """Rows of one dump, with their positions in a batch and the columns that are reward parts."""

    positions: list[int]
    rows: pl.DataFrame
    rewards: list[str]


class IndexBatch(NamedTuple):
    """Index rows, the same as a table of the columns of the export, and what is known about their steps and dumps."""

    rows: Sequence[IndexRow]
    table: pl.DataFrame
    known: KnownRows


class StepPlace(NamedTuple):
    run: str
    attempt: str
    split: str
    step_kind: str
    step: int
    run_name: str


@dataclass(slots=True)
class KnownRows:
    """What the database says about the steps and dumps of some samples, so that it is not asked for each of them."""

    places: dict[int, StepPlace] = field(default_factory=dict)  # by step
    labelled: set[int] = field(default_factory=set)  # steps with labels
    merged: set[int] = field(default_factory=set)  # steps of runs with samples that are in several dumps
    dumps: dict[int, Dump] = field(default_factory=dict)

    @classmethod
    def load(cls, steps: Collection[int], dumps: Collection[int]) -> KnownRows:
        fields = ("run__uid", "attempt__key", *STEP_FIELDS, "run__name")
        found = list(Step.objects.filter(pk__in=steps).values_list("pk", "run", *fields))
        labels = Label.objects.active().filter(step__in=steps).order_by()
        sources = DuplicateSource.objects.filter(dump__run__in={row[1] for row in found}).order_by()
        runs = set(sources.values_list("dump__run", flat=True).distinct())
        return cls(
            places={pk: StepPlace(*values) for pk, _run, *values in found},
            labelled=set(labels.values_list("step", flat=True).distinct()),
            merged={pk for pk, run, *_values in found if run in runs},
            dumps=Dump.objects.select_related("segment").in_bulk(dumps),
        )


def iterate_sample_tables(
    samples: SampleQuerySet, reader: User | AnonymousUser | None = None
) -> Iterator[tuple[pl.DataFrame, Labels]]:
    """Yields tables with the columns of `EXPORT_SCHEMA` in the order of the query, with the labels that the reader may
    read, by sample. Samples whose text is gone are left out. Raises StorageUnavailableError."""
    bodies = BodyReader(without=UNREAD_COLUMNS)

    def read(batch: IndexBatch) -> list[BatchBody]:
        places = [(row[PK], row[DUMP], row[ORDINAL]) for row in batch.rows]
        return [
            BatchBody(positions, repair_json(body), bodies.list_reward_columns())
            for positions, body in read_bodies(places, batch.known.dumps, bodies)
        ]

    for batch, found in read_ahead(iterate_index_batches(samples, reader), read):
        known = batch.known
        labelled = [row[PK] for row in batch.rows if row[STEP] in known.labelled]
        labels = load_exported_labels(labelled, reader) if labelled else {}
        merged = [row[PK] for row in batch.rows if row[STEP] in known.merged]
        if merged and DuplicateSource.objects.filter(sample__in=merged).exists():
            yield build_merged_table([row[PK] for row in batch.rows], labels, reader), labels
        else:
            yield build_table(batch.table, found, labels), labels


def repair_json(body: pl.DataFrame) -> pl.DataFrame:
    """Rewrites JSON that `orjson` refuses. Other rows are not parsed: exports copy JSON as it is."""
    repaired = []
    for column in body:
        if is_json_column(column.name) and column.null_count() < len(column):
            odd = column.str.contains(ODD_JSON).fill_null(False)
            if odd.any():
                rows = zip(column, odd, strict=True)
                texts = [to_stored_json(parse_json(text)) if is_odd else text for text, is_odd in rows]
                repaired.append(pl.Series(column.name, texts, pl.String))
    return body.with_columns(repaired) if repaired else body


def iterate_index_batches(samples: SampleQuerySet, reader: User | AnonymousUser | None) -> Iterator[IndexBatch]:
    rows = samples.select_related(None).values_list(*select_raw(INDEX_FIELDS)).iterator(chunk_size=BATCH_ROWS)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        known = KnownRows.load({row[STEP] for row in chunk}, {row[DUMP] for row in chunk})
        found = [row for row in chunk if row[STEP] in known.places]  # not deleted a moment ago
        if not found:
            continue
        index = build_index_table(name_rescores(found, reader), known)
        start = 0
        for batch in split_batches(found):
            yield IndexBatch(batch, index.slice(start, len(batch)), known)
            start += len(batch)


def select_raw(names: Iterable[str]) -> list[Any]:
    """Returns what `values_list` takes for these fields of samples, with booleans and JSON as the database has them: 0
    and 1 on SQLite. Django converts them one by one, which takes a third of the time of the query."""
    return [ExpressionWrapper(F(name), TextField()) if name in RAW_FIELDS else name for name in names]


def split_batches(rows: Sequence[IndexRow]) -> Iterator[Sequence[IndexRow]]:
    """Yields up to `BATCH_ROWS` rows whose responses have about `BATCH_CHARS` characters."""
    start = 0
    while batch := rows[start : start + BATCH_ROWS]:
        totals = list(accumulate(row[CHARS] for row in batch))
        count = min(bisect_left(totals, BATCH_CHARS) + 1, len(batch))
        yield batch[:count]
        start += count


def name_rescores(batch: Sequence[IndexRow], reader: User | AnonymousUser | None) -> Sequence[IndexRow]:
    """Returns the rows with their re-scores by name, as JSON text, if any has one."""
    steps = {row[STEP] for row in batch if row[RESCORES]}
    if not steps:
        return batch
    names = load_rescore_names(steps, reader)
    return [(*row[:RESCORES], dump_text(name_values(orjson.loads(row[RESCORES] or "{}"), names))) for row in batch]


def build_merged_table(ids: Sequence[str], labels: Labels, reader: User | AnonymousUser | None) -> pl.DataFrame:
    """Some of the samples are in several dumps, whose values are merged one by one."""
    found = prefetch_step_relations(Sample.objects.all()).in_bulk(ids)
    samples = [found[pk] for pk in ids if pk in found]
    rows = load_full_samples(samples, labels, load_rescore_values(samples, reader))
    texts = [{**row, **{name: dump_json(row[name]) for name in JSON_COLUMNS}} for row in rows]
    return to_frame(pa.Table.from_pylist(texts, schema=EXPORT_SCHEMA))


def build_index_table(rows: Sequence[IndexRow], known: KnownRows) -> pl.DataFrame:
    """Returns the columns of `EXPORT_SCHEMA` that index rows have. Many rows at once take less time than batches: most
    of it is for calls."""
    columns: dict[str, Any] = dict(zip(INDEX_FIELDS, zip(*rows, strict=True), strict=True))
    columns["id"] = columns["pk"]
    columns |= select_places(columns["step_id"], known)
    columns["facets"] = select_facets(columns["facets"])
    columns["rescores"] = [text or "{}" for text in columns["rescores"]]
    columns["group"] = [group or None for group in columns["group"]]
    columns["labels"] = pl.repeat("[]", len(rows), eager=True)
    fields = [field for field in EXPORT_SCHEMA if field.name in columns]
    return pl.DataFrame([build_column(field, columns[field.name]) for field in fields])


def build_table(index: pl.DataFrame, bodies: Sequence[BatchBody], labels: Labels) -> pl.DataFrame:
    tables, positions = [], []
    for found, body, rewards in bodies:
        is_whole = found == list(range(index.height))
        tables.append(join_columns(index if is_whole else index[found], body, rewards, labels))
        positions += found
    joined = pl.concat(tables, rechunk=False) if tables else TABLE_SCHEMA.to_frame()
    if positions == sorted(positions):
        return joined
    return joined[sorted(range(len(positions)), key=positions.__getitem__)]


def join_columns(index: pl.DataFrame, body: pl.DataFrame, rewards: Collection[str], labels: Labels) -> pl.DataFrame:
    """Returns the index rows with their bodies, which have the same order. `rewards` are columns of the body."""
    columns = index.to_dict() | {name: body[name] for name in BODY_COLUMNS}
    if index["group"].null_count():
        columns["group"] = index["group"].zip_with(index["group"].is_not_null(), body["group"])
    if labels:
        columns["labels"] = pl.Series([dump_json(labels.get(pk, [])) for pk in index["id"]], dtype=pl.String)
    columns["rewards"], columns["extras"] = encode_own_values(body, rewards)
    return pl.DataFrame([columns[name].cast(kind).alias(name) for name, kind in TABLE_SCHEMA.items()])


def build_column(field: pa.Field, values: pl.Series | Sequence[Any]) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.cast(TABLE_SCHEMA[field.name]).alias(field.name)
    if field.name in RAW_FIELDS:
        return pl.Series(field.name, pa.array(values).cast(field.type))
    return pl.Series(field.name, pa.array(values, field.type))


def select_places(steps: Sequence[int], known: KnownRows) -> dict[str, pl.Series]:
    """Returns the columns that all samples of a step have in common."""
    rows = {step: row for row, step in enumerate(dict.fromkeys(steps))}
    schema = {name: TABLE_SCHEMA[name] for name in StepPlace._fields if name in TABLE_SCHEMA}
    values = {name: [getattr(known.places[step], name) for step in rows] for name in schema}
    return pl.DataFrame(values, schema)[[rows[step] for step in steps]].to_dict()


def select_facets(masks: Sequence[int]) -> pl.Series:
    rows = {mask: row for row, mask in enumerate(dict.fromkeys(masks))}
    lists = pl.Series(map(list_facets, rows), dtype=TABLE_SCHEMA["facets"])
    return lists.gather([rows[mask] for mask in masks])


def list_facets(mask: int) -> list[str]:
    return [name for name, bit in TEXT_PROPERTY_BITS.items() if mask & bit] if mask else []


def encode_own_values(body: pl.DataFrame, reward_columns: Collection[str]) -> tuple[pl.Series, pl.Series]:
    """Returns rewards and extras of each row as JSON text, from the columns that the run added. Whole numbers are
    integers, except in rewards."""
    own = [column for column in body if column.name.partition(".")[0] in ("num", "str", "json")]
    parts = [column for column in own if column.name in reward_columns]
    others = [column for column in own if column.name not in reward_columns]
    encoded = [encode_rows(parts), encode_rows([part for column in others for part in split_whole_numbers(column)])]
    texts = pl.DataFrame(height=body.height).with_columns(rewards=encoded[0], extras=encoded[1])
    rewards, extras = texts["rewards"], texts["extras"]
    if body["more"].null_count() < body.height:
        more = [text and parse_json(text) for text in body["more"]]
        rewards, extras = add_values(rewards, more, "rewards"), add_values(extras, more, "extras")
    return rewards, extras


def split_whole_numbers(column: pl.Series) -> list[pl.Series]:
    """Returns the whole numbers of a column as integers and the others as floats; another column as it is."""
    if column.dtype != pl.Float64:
        return [column]
    values = column.to_numpy()  # null is NaN
    is_whole = (values == np.floor(values)) & (np.abs(values) <= MAX_WHOLE_NUMBER)
    count = np.count_nonzero(is_whole)
    if count == len(column) - column.null_count():
        return [column.cast(pl.Int64)]
    if not count:
        return [column]
    return [column.set(pl.Series(~is_whole), None).cast(pl.Int64), column.set(pl.Series(is_whole), None)]


def encode_rows(columns: Sequence[pl.Series]) -> pl.Expr:
    """Returns a JSON object for each row, with the values that are not null. Names are `<kind>.<key>`; columns of the
    kind `json` have JSON text."""
    if not columns:
        return pl.lit("{}")
    keys = [column.name.partition(".")[2] for column in columns]
    has_json = any(column.name.startswith("json.") for column in columns)
    if not has_json and not any(column.null_count() for column in columns):
        return encode_struct(columns, keys)
    members = [encode_member(column, key) for column, key in zip(columns, keys, strict=True)]
    return pl.concat_str(pl.lit("{"), pl.concat_str(members, separator=",", ignore_nulls=True), pl.lit("}"))


def encode_struct(columns: Sequence[pl.Series], keys: Sequence[str]) -> pl.Expr:
    """Returns JSON objects, in which each column has a value. Floats and texts look as orjson writes them."""
    fields = [pl.lit(column).alias(key) for column, key in zip(columns, keys, strict=True)]
    return pl.struct(fields).struct.json_encode()


def encode_member(column: pl.Series, key: str) -> pl.Expr:
    """Returns `"key":value`, null where the column is."""
    if column.name.startswith("json."):
        return pl.lit(f"{orjson.dumps(key).decode()}:") + pl.lit(column)
    text = encode_struct([column], [key]).str.strip_prefix("{").str.strip_suffix("}")
    return pl.when(pl.lit(column).is_not_null()).then(text)


def add_values(texts: pl.Series, more: Sequence[Mapping[str, Any] | None], name: str) -> pl.Series:
    """Adds the values that have no column to the JSON objects of their rows."""
    rows = zip(texts, more, strict=True)
    return pl.Series([dump_text(parse_json(text) | values[name]) if values else text for text, values in rows])


def dump_text(row: dict[str, Any]) -> str:
    return orjson.dumps(row).decode() if row else "{}"


def open_parquet_writer(buffer: DrainableBuffer, schema: pa.Schema) -> pq.ParquetWriter:
    """Opens a writer for tables of `to_arrow`. The file has no Arrow schema, which would name the views."""
    file = pa.PythonFile(buffer, mode="w")
    return pq.ParquetWriter(file, replace_texts_by_views(schema), compression="zstd", store_schema=False)


def replace_texts_by_views(schema: pa.Schema) -> pa.Schema:
    """polars keeps texts as views, and each other type is a copy of all of them. Arrow writes no views within lists."""
    fields = (field.with_type(pa.string_view()) if field.type == pa.string() else field for field in schema)
    return pa.schema(fields)


def to_arrow(table: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    views = table.select(schema.names).to_arrow(compat_level=pl.CompatLevel.newest())
    return views.cast(replace_texts_by_views(schema))


def export_jsonl(samples: SampleQuerySet, reader: User | AnonymousUser | None = None) -> Iterator[bytes]:
    """Yields JSONL: one JSON object per line."""
    for table, _labels in iterate_sample_tables(samples, reader):
        yield b"".join(map(dump_line, table.iter_rows(named=True)))


def dump_line(row: dict[str, Any]) -> bytes:
    for name in JSON_COLUMNS:
        if row[name] is not None:
            row[name] = orjson.Fragment(row[name])
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def export_parquet(samples: SampleQuerySet, reader: User | AnonymousUser | None = None) -> Iterator[bytes]:
    """Yields the bytes of a Parquet file with one row group per batch. Nested columns are JSON text."""
    buffer = DrainableBuffer()
    with open_parquet_writer(buffer, EXPORT_SCHEMA) as writer:
        for table, _labels in iterate_sample_tables(samples, reader):
            writer.write_table(to_arrow(table, EXPORT_SCHEMA))
            yield buffer.take()
    yield buffer.take()
