"""Reads full samples as tables, without an object for each sample, which takes a twentieth of the time. Exports them as
JSONL or Parquet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

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
from rollouts.samples.parquet import ARRAYS, JSONS
from rollouts.samples.rescore_blocks import load_rescore_names, load_rescore_values, name_values
from rollouts.samples.text_properties import TEXT_PROPERTY_BITS

CHUNK_ROWS: Final = 4096  # of index rows, for which steps and dumps are loaded together
BATCH_ROWS: Final = 1024
BATCH_CHARS: Final = 8 << 20  # of responses: long texts make smaller batches
INDEX_FIELDS: Final = ("pk", "dump_id", "ordinal", "step_id", *SAMPLE_FIELDS, "facets", "data_source", "rescores")
PK, DUMP, ORDINAL, STEP, CHARS, RESCORES = 0, 1, 2, 3, INDEX_FIELDS.index("chars"), -1  # positions in them
# Django converts these values one by one, which takes a third of the time of the query. A text field does not.
RAW_FIELDS: Final = frozenset({"final", "correct", "truncated", "rescores"})
BODY_COLUMNS: Final = ("prompt", "response", "ground_truth", "finish_reason", "turn", "policy_version", *JSONS, *ARRAYS)
# The index rows have these values.
UNREAD_COLUMNS: Final = frozenset({"id", "prompt_key", "score", "trajectory", "data_source", "index", "truncated"})
TABLE_SCHEMA: Final = pl.Schema(EXPORT_SCHEMA)

IndexRow = tuple[Any, ...]
Labels = Mapping[str, list[dict[str, Any]]]


class BatchBody(NamedTuple):
    """Rows of one dump, with their positions in a batch and the columns that are reward parts."""

    positions: list[int]
    rows: pl.DataFrame
    rewards: list[str]


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
    fields = [ExpressionWrapper(F(name), TextField()) if name in RAW_FIELDS else name for name in INDEX_FIELDS]
    rows = samples.select_related(None).values_list(*fields).iterator(chunk_size=BATCH_ROWS)
    bodies = BodyReader(without=UNREAD_COLUMNS)

    def iterate_batches() -> Iterator[tuple[list[IndexRow], KnownRows]]:
        while chunk := list(islice(rows, CHUNK_ROWS)):
            known = KnownRows.load({row[STEP] for row in chunk}, {row[DUMP] for row in chunk})
            yield from ((batch, known) for batch in split_batches(chunk))

    def read(batch: tuple[list[IndexRow], KnownRows]) -> list[BatchBody]:
        places = [(row[DUMP], row[ORDINAL]) for row in batch[0]]
        return [
            BatchBody(positions, body, bodies.list_reward_columns())
            for positions, body in read_bodies(places, batch[1].dumps, bodies)
        ]

    for (batch, known), found in read_ahead(iterate_batches(), read):
        labelled = [row[PK] for row in batch if row[STEP] in known.labelled]
        labels = load_exported_labels(labelled, reader) if labelled else {}
        merged = [row[PK] for row in batch if row[STEP] in known.merged]
        if merged and DuplicateSource.objects.filter(sample__in=merged).exists():
            yield build_merged_table([row[PK] for row in batch], labels, reader), labels
        else:
            yield build_table(name_rescores(batch, reader), found, labels, known), labels


def split_batches(rows: Iterable[IndexRow]) -> Iterator[list[IndexRow]]:
    """Yields up to `BATCH_ROWS` rows whose responses have about `BATCH_CHARS` characters."""
    batch: list[IndexRow] = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += row[CHARS]
        if len(batch) == BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


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


def build_table(
    batch: Sequence[IndexRow], bodies: Sequence[BatchBody], labels: Labels, known: KnownRows
) -> pl.DataFrame:
    tables, positions = [], []
    for found, body, rewards in bodies:
        tables.append(join_columns([batch[position] for position in found], body, rewards, labels, known))
        positions += found
    joined = pl.concat(tables, rechunk=False) if tables else TABLE_SCHEMA.to_frame()
    if positions == sorted(positions):
        return joined
    return joined[sorted(range(len(positions)), key=positions.__getitem__)]


def join_columns(
    rows: Sequence[IndexRow], body: pl.DataFrame, rewards: Collection[str], labels: Labels, known: KnownRows
) -> pl.DataFrame:
    """Returns the index rows with their bodies, which have the same order. `rewards` are columns of the body."""
    columns: dict[str, Any] = dict(zip(INDEX_FIELDS, zip(*rows, strict=True), strict=True))
    columns["id"] = columns["pk"]
    of_steps = [known.places[step] for step in columns["step_id"]]
    columns |= dict(zip(StepPlace._fields, zip(*of_steps, strict=True), strict=True))
    names = {mask: list_facets(mask) for mask in set(columns["facets"])}
    columns["facets"] = [names[mask] for mask in columns["facets"]]
    columns["labels"] = [dump_json(labels[pk]) if pk in labels else "[]" for pk in columns["pk"]]
    columns["rescores"] = [text or "{}" for text in columns["rescores"]]
    if not all(columns["group"]):
        columns["group"] = [own or other for own, other in zip(columns["group"], body["group"], strict=True)]
    columns["rewards"], columns["extras"] = dump_own_values(body, rewards)
    columns |= {name: body[name] for name in BODY_COLUMNS}
    return pl.DataFrame([build_column(field, columns[field.name]) for field in EXPORT_SCHEMA])


def build_column(field: pa.Field, values: pl.Series | Sequence[Any]) -> pl.Series:
    if isinstance(values, pl.Series):
        return values.cast(TABLE_SCHEMA[field.name])
    if field.name in RAW_FIELDS:
        return pl.Series(field.name, pa.array(values).cast(field.type))
    return pl.Series(field.name, pa.array(values, field.type))


def list_facets(mask: int) -> list[str]:
    return [name for name, bit in TEXT_PROPERTY_BITS.items() if mask & bit] if mask else []


def dump_own_values(body: pl.DataFrame, reward_columns: Collection[str]) -> tuple[list[str], list[str]]:
    """Returns rewards and extras of each row as JSON text, from the columns that the run added. Whole numbers are
    integers, except in rewards."""
    rewards: list[dict[str, Any]] = [{} for _row in range(body.height)]
    extras: list[dict[str, Any]] = [{} for _row in range(body.height)]
    for column in body:
        kind, _, key = column.name.partition(".")
        if kind not in ("num", "str", "json") or not key:
            continue
        values = column.to_list()
        if kind == "num" and column.name not in reward_columns:
            values = [int(value) if value is not None and value.is_integer() else value for value in values]
        elif kind == "json":
            values = [value if value is None else orjson.Fragment(value) for value in values]
        for row, value in zip(rewards if column.name in reward_columns else extras, values, strict=True):
            if value is not None:
                row[key] = value
    if body["more"].null_count() < body.height:
        for at, text in enumerate(body["more"]):
            if text is not None:
                more = orjson.loads(text)
                rewards[at] |= more["rewards"]
                extras[at] |= more["extras"]
    return [dump_text(row) for row in rewards], [dump_text(row) for row in extras]


def dump_text(row: dict[str, Any]) -> str:
    return orjson.dumps(row).decode() if row else "{}"


def to_arrow(table: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


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
    with pq.ParquetWriter(pa.PythonFile(buffer, mode="w"), EXPORT_SCHEMA, compression="zstd") as writer:
        for table, _labels in iterate_sample_tables(samples, reader):
            writer.write_table(to_arrow(table, EXPORT_SCHEMA))
            yield buffer.take()
    yield buffer.take()
