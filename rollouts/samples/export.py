"""Samples on their way out, a few hundred in memory at a time, whole: what lists show plus the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.models import Sample, SampleQuerySet
from rollouts.samples import bodies
from rollouts.samples.record import Record
from rollouts.samples.text_properties import TEXT_PROPERTY_BITS

BATCH = 256
BODY = tuple(known.name for known in fields(Record) if known.name != "textless")

TEXT, NUMBER, WHOLE, YES = pa.string(), pa.float64(), pa.int64(), pa.bool_()
JSON = ("messages", "rewards", "timing", "metrics", "segments", "tools", "extras")
SCHEMA = pa.schema(
    [
        ("id", TEXT), ("run", TEXT), ("attempt", TEXT), ("split", TEXT), ("step_kind", TEXT), ("step", WHOLE),
        ("group", TEXT), ("index", WHOLE), ("trajectory", TEXT), ("turn", WHOLE), ("final", YES), ("prompt_key", TEXT),
        ("score", NUMBER), ("correct", YES), ("advantage", NUMBER), ("chars", WHOLE), ("tokens", WHOLE),
        ("truncated", YES), ("facets", pa.list_(TEXT)), ("data_source", TEXT), ("ground_truth", TEXT),
        ("finish_reason", TEXT), ("policy_version", WHOLE), ("prompt", TEXT), ("response", TEXT),
        *((name, TEXT) for name in JSON),
        ("prompt_ids", pa.list_(WHOLE)), ("response_ids", pa.list_(WHOLE)), ("response_mask", pa.list_(WHOLE)),
        ("logprobs", pa.list_(NUMBER)), ("ref_logprobs", pa.list_(NUMBER)), ("advantages", pa.list_(NUMBER)),
    ]
)  # fmt: skip


def serialize_index_row(sample: Sample) -> dict[str, Any]:
    """A sample as lists show it: what it can be sorted and filtered by, and its tail; never its body."""
    step = sample.step
    return {
        "id": sample.pk,
        "run": step.run.uid,
        "attempt": step.attempt.key,
        "split": step.split,
        "step_kind": step.step_kind,
        "step": step.step,
        "group": sample.group,
        "index": sample.index,
        "trajectory": sample.trajectory,
        "final": sample.final,
        "prompt_key": sample.prompt_key,
        "score": sample.score,
        "correct": sample.correct,
        "advantage": sample.advantage,
        "chars": sample.chars,
        "tokens": sample.tokens,
        "truncated": sample.truncated,
        "facets": [name for name, bit in TEXT_PROPERTY_BITS.items() if sample.facets & bit],
        "data_source": sample.data_source,
        "expected": sample.expected,
        "tail": sample.tail,
    }


def serialize_full_sample(sample: Sample, body: bodies.SampleBody) -> dict[str, Any]:
    """A sample with everything its dumps tell of it; a response of which only the tokens are known is null."""
    told = {name: getattr(body, name) for name in BODY}
    told["response"] = None if body.textless else body.response
    row = serialize_index_row(sample)
    del row["tail"], row["expected"]
    return {**told, **row, "group": row["group"] or told["group"]}


def prefetch_step_relations(samples: SampleQuerySet) -> SampleQuerySet:
    """Steps, runs and attempts beside the rows: a few for many samples, so a join would decode each of them anew."""
    return samples.select_related(None).prefetch_related("step__run", "step__attempt")


def iterate_full_samples(samples: SampleQuerySet) -> Iterator[list[dict[str, Any]]]:
    """Whole samples in batches, in the order of the query."""
    found = prefetch_step_relations(samples).iterator(chunk_size=BATCH)
    while batch := list(islice(found, BATCH)):
        read = bodies.load_bodies(batch)
        yield [serialize_full_sample(sample, read[sample.pk]) for sample in batch if sample.pk in read]


def export_jsonl(samples: SampleQuerySet) -> Iterator[bytes]:
    """One JSON object per line."""
    for batch in iterate_full_samples(samples):
        yield b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE, default=str) for row in batch)


class Drain:
    """A file that gives away what was written to it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return len(self.pieces[-1])

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        taken, self.pieces = b"".join(self.pieces), []
        return taken


def export_parquet(samples: SampleQuerySet) -> Iterator[bytes]:
    """A Parquet file, a row group per batch; what has no fixed shape is JSON text."""
    drain = Drain()
    with pq.ParquetWriter(pa.PythonFile(drain, mode="w"), SCHEMA, compression="zstd") as writer:
        for batch in iterate_full_samples(samples):
            writer.write_table(pa.Table.from_pylist(flat(batch), schema=SCHEMA))
            yield drain.take()
    yield drain.take()


def flat(batch: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, **{name: text_of(row[name]) for name in JSON}} for row in batch]


def text_of(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value, default=str).decode()
