"""Reads full samples as Arrow tables, without an object for each sample, which takes a tenth of the time. Exports them
as Parquet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from django.contrib.auth.models import AnonymousUser, User

from rollouts.models import Dump, DuplicateSource, Sample, SampleQuerySet, Step
from rollouts.samples.bodies import load_dump_tables
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
from rollouts.samples.parquet import ARRAYS, JSONS, is_reward_column
from rollouts.samples.rescore_blocks import load_rescore_names, load_rescore_values, name_values
from rollouts.samples.text_properties import TEXT_PROPERTY_BITS

BATCH_ROWS: Final = 1024
INDEX_FIELDS: Final = ("pk", "dump_id", "ordinal", "step_id", *SAMPLE_FIELDS, "facets", "data_source", "rescores")
DUMP, ORDINAL, STEP, RESCORES = 1, 2, 3, -1  # positions in them

IndexRow = tuple[Any, ...]
Labels = Mapping[str, list[dict[str, Any]]]
Places = dict[int, tuple[Any, ...]]  # of a step: run, attempt and `STEP_FIELDS`


def iterate_sample_tables(
    samples: SampleQuerySet, reader: User | AnonymousUser | None = None
) -> Iterator[tuple[pa.Table, Labels]]:
    """Yields tables with `EXPORT_SCHEMA` in the order of the query, with the labels that the reader may read, by
    sample. Samples whose text is gone are left out. Raises StorageUnavailableError."""
    places: Places = {}
    matches = samples.select_related(None).values_list(*INDEX_FIELDS).iterator(chunk_size=BATCH_ROWS)
    while batch := list(islice(matches, BATCH_ROWS)):
        ids = [row[0] for row in batch]
        labels = load_exported_labels(ids, reader)
        if DuplicateSource.objects.filter(sample__in=ids).exists():
            yield build_merged_table(ids, labels, reader), labels
            continue
        load_places({row[STEP] for row in batch} - set(places), places)
        yield read_batch(name_rescores(batch, reader), labels, places), labels


def name_rescores(batch: Sequence[IndexRow], reader: User | AnonymousUser | None) -> list[IndexRow]:
    """Returns the rows with their re-scores by name, as JSON text."""
    names = load_rescore_names({row[STEP] for row in batch if row[RESCORES]}, reader)
    return [(*row[:RESCORES], dump_text(name_values(row[RESCORES], names))) for row in batch]


def build_merged_table(ids: Sequence[str], labels: Labels, reader: User | AnonymousUser | None) -> pa.Table:
    """Some of the samples are in several dumps, whose values are merged one by one."""
    found = prefetch_step_relations(Sample.objects.all()).in_bulk(ids)
    samples = [found[pk] for pk in ids if pk in found]
    rows = load_full_samples(samples, labels, load_rescore_values(samples, reader))
    texts = [{**row, **{name: dump_json(row[name]) for name in JSON_COLUMNS}} for row in rows]
    return pa.Table.from_pylist(texts, schema=EXPORT_SCHEMA)


def load_places(missing: set[int], places: Places) -> None:
    fields = ("pk", "run__uid", "attempt__key", *STEP_FIELDS)
    if missing:
        places |= {row[0]: row[1:] for row in Step.objects.filter(pk__in=missing).values_list(*fields)}


def read_batch(batch: Sequence[IndexRow], labels: Labels, places: Places) -> pa.Table:
    by_dump: dict[int, dict[int, int]] = defaultdict(dict)  # the positions of the rows by ordinal
    for position, row in enumerate(batch):
        by_dump[row[DUMP]][row[ORDINAL]] = position
    tables, positions = [], []
    for dump in Dump.objects.filter(pk__in=by_dump).select_related("segment"):
        for ordinals, table in load_dump_tables(dump, sorted(by_dump[dump.pk])):
            found = [by_dump[dump.pk][ordinal] for ordinal in ordinals]
            tables.append(join_columns([batch[position] for position in found], table, labels, places))
            positions += found
    joined = pa.concat_tables(tables) if tables else EXPORT_SCHEMA.empty_table()
    if positions == sorted(positions):
        return joined
    return joined.take(pa.array(sorted(range(len(positions)), key=positions.__getitem__), pa.int64()))


def join_columns(rows: Sequence[IndexRow], body: pa.Table, labels: Labels, places: Places) -> pa.Table:
    """Returns the index rows with their bodies, which have the same order, as a table with `EXPORT_SCHEMA`."""
    columns: dict[str, Any] = dict(zip(INDEX_FIELDS, zip(*rows, strict=True), strict=True))
    columns["id"] = columns["pk"]
    of_steps = [places[step] for step in columns["step_id"]]
    columns |= dict(zip(("run", "attempt", *STEP_FIELDS), zip(*of_steps, strict=True), strict=True))
    columns["facets"] = [list_facets(mask) for mask in columns["facets"]]
    columns["labels"] = [dump_json(labels.get(pk, [])) for pk in columns["pk"]]
    if not all(columns["group"]):
        recorded = body["group"].to_pylist()
        columns["group"] = [own or other for own, other in zip(columns["group"], recorded, strict=True)]
    columns["rewards"], columns["extras"] = dump_own_values(body)
    for name in ("prompt", "response", "ground_truth", "finish_reason", "turn", "policy_version", *JSONS, *ARRAYS):
        columns[name] = body[name]
    return pa.Table.from_arrays(
        [
            column.cast(field.type)
            if isinstance(column := columns[field.name], pa.ChunkedArray)
            else pa.array(column, field.type)
            for field in EXPORT_SCHEMA
        ],
        schema=EXPORT_SCHEMA,
    )


def list_facets(mask: int) -> list[str]:
    return [name for name, bit in TEXT_PROPERTY_BITS.items() if mask & bit] if mask else []


def dump_own_values(body: pa.Table) -> tuple[list[str], list[str]]:
    """Returns rewards and extras of each row as JSON text, from the columns that the run added."""
    rewards: list[dict[str, Any]] = [{} for _row in range(body.num_rows)]
    extras: list[dict[str, Any]] = [{} for _row in range(body.num_rows)]
    for field in body.schema:
        kind, _, key = field.name.partition(".")
        if kind not in ("num", "str", "json") or not key:
            continue
        target = rewards if is_reward_column(field) else extras
        for row, value in zip(target, body[field.name].to_pylist(), strict=True):
            if value is not None:
                row[key] = convert_own_value(kind, value, is_reward=target is rewards)
    for at, text in enumerate(body["more"].to_pylist() if body["more"].null_count < body.num_rows else ()):
        if text is not None:
            more = orjson.loads(text)
            rewards[at] |= more["rewards"]
            extras[at] |= more["extras"]
    return [dump_text(row) for row in rewards], [dump_text(row) for row in extras]


def dump_text(row: dict[str, Any]) -> str:
    return orjson.dumps(row).decode() if row else "{}"


def convert_own_value(kind: str, value: Any, *, is_reward: bool) -> Any:
    """Whole numbers are integers, except in rewards. JSON text stays as it is."""
    if kind == "json":
        return orjson.Fragment(value)
    return int(value) if kind == "num" and not is_reward and value.is_integer() else value


def export_parquet(samples: SampleQuerySet, reader: User | AnonymousUser | None = None) -> Iterator[bytes]:
    """Yields the bytes of a Parquet file with one row group per batch. Nested columns are JSON text."""
    buffer = DrainableBuffer()
    with pq.ParquetWriter(pa.PythonFile(buffer, mode="w"), EXPORT_SCHEMA, compression="zstd") as writer:
        for table, _labels in iterate_sample_tables(samples, reader):
            writer.write_table(table)
            yield buffer.take()
    yield buffer.take()
