"""Full samples: the index row, the body, the labels and the re-scores of a sample as one row."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa
from django.contrib.auth.models import AnonymousUser, User
from django.db.models.functions import Coalesce

from rollouts.models import Label, Sample, SampleQuerySet
from rollouts.samples import bodies
from rollouts.samples.record import Record
from rollouts.samples.rescore_blocks import load_rescore_values
from rollouts.samples.responses import TEXT_PROPERTY_BITS

BATCH_ROWS = 256
EXPORTED_BODY_FIELDS = tuple(field.name for field in fields(Record) if field.name != "textless")

STEP_FIELDS = ("split", "step_kind", "step")
SAMPLE_FIELDS = (
    "group", "index", "trajectory", "final", "prompt_key", "score", "correct", "advantage", "chars", "tokens",
    "truncated", "staleness", "duration",
)  # fmt: skip
LABEL_COLUMNS = ("name", "value", "rationale", "source", "author", "start", "end", "created_at", "updated_at")
LABEL_FIELDS = ("data_source", "expected", "tail")

TEXT, NUMBER, INT, BOOL = pa.string(), pa.float64(), pa.int64(), pa.bool_()
JSON_COLUMNS = ("messages", "rewards", "timing", "metrics", "segments", "tools", "extras", "labels", "rescores")
EXPORT_SCHEMA = pa.schema(
    [
        ("id", TEXT), ("run", TEXT), ("attempt", TEXT), ("split", TEXT), ("step_kind", TEXT), ("step", INT),
        ("group", TEXT), ("index", INT), ("trajectory", TEXT), ("turn", INT), ("final", BOOL), ("prompt_key", TEXT),
        ("score", NUMBER), ("correct", BOOL), ("advantage", NUMBER), ("chars", INT), ("tokens", INT),
        ("truncated", BOOL), ("staleness", INT), ("duration", NUMBER),
        ("facets", pa.list_(TEXT)), ("data_source", TEXT), ("ground_truth", TEXT),
        ("finish_reason", TEXT), ("policy_version", INT), ("prompt", TEXT), ("response", TEXT),
        *((name, TEXT) for name in JSON_COLUMNS),
        ("prompt_ids", pa.list_(INT)), ("response_ids", pa.list_(INT)), ("response_mask", pa.list_(INT)),
        ("logprobs", pa.list_(NUMBER)), ("ref_logprobs", pa.list_(NUMBER)), ("advantages", pa.list_(NUMBER)),
    ]
)  # fmt: skip


def serialize_index_row(sample: Sample) -> dict[str, Any]:
    """Returns the index row of a sample: the fields that lists sort and filter by, and the tail. No body."""
    step = sample.step
    return {
        "id": sample.pk,
        "run": step.run.uid,
        "attempt": step.attempt.key,
        **{name: getattr(step, name) for name in STEP_FIELDS},
        **{name: getattr(sample, name) for name in SAMPLE_FIELDS},
        "facets": [name for name, bit in TEXT_PROPERTY_BITS.items() if sample.facets & bit],
        **{name: getattr(sample, name) for name in LABEL_FIELDS},
    }


def serialize_full_sample(
    sample: Sample,
    body: bodies.SampleBody,
    labels: Sequence[Mapping[str, Any]],
    rescores: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Returns the index row, the body, the labels and the re-scores of a sample. The response is null if only its
    tokens were recorded."""
    values = {name: getattr(body, name) for name in EXPORTED_BODY_FIELDS}
    values["response"] = None if body.textless else body.response
    row = serialize_index_row(sample)
    del row["tail"], row["expected"]
    return {
        **values,
        **row,
        "group": row["group"] or values["group"],
        "labels": list(labels),
        "rescores": dict(rescores or {}),
    }


def load_exported_labels(
    ids: Sequence[str], reader: User | AnonymousUser | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Returns the current labels by sample, oldest first. Flags and OK are labels too. With `reader`, those that this
    user may read."""
    labels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    rows = Label.objects.active().filter(sample__in=ids).order_by("created_at", "pk")
    if reader is not None:
        rows = rows.readable_by(reader)
    rows = rows.annotate(answered=Coalesce("rubric__number", "rubric_number", 0))
    for row in rows.values("sample", "answered", *LABEL_COLUMNS):
        sample, answered = row.pop("sample"), row.pop("answered")
        labels[sample].append({**row, "rubric": answered})
    return labels


def prefetch_step_relations(samples: SampleQuerySet) -> SampleQuerySet:
    """Loads steps, runs and attempts in separate queries: a join would decode the same step for each sample."""
    return samples.select_related(None).prefetch_related("step__run", "step__attempt")


def iterate_full_samples(
    samples: SampleQuerySet, reader: User | AnonymousUser | None = None
) -> Iterator[list[dict[str, Any]]]:
    """Yields full samples in batches, in the order of the query, with the labels and re-scores that the reader may
    see."""
    matches = prefetch_step_relations(samples).iterator(chunk_size=BATCH_ROWS)
    while batch := list(islice(matches, BATCH_ROWS)):
        ids = [sample.pk for sample in batch]
        yield load_full_samples(batch, load_exported_labels(ids, reader), load_rescore_values(batch, reader))


def load_full_samples(
    samples: Sequence[Sample],
    labels: Mapping[str, Sequence[Mapping[str, Any]]],
    rescores: Mapping[str, Mapping[str, float]],
) -> list[dict[str, Any]]:
    """Returns these samples with their bodies, without those whose body is gone."""
    loaded = bodies.load_bodies(samples)
    return [
        serialize_full_sample(sample, loaded[sample.pk], labels.get(sample.pk, ()), rescores.get(sample.pk))
        for sample in samples
        if sample.pk in loaded
    ]


class DrainableBuffer:
    """A writable file that hands over the bytes written since the last `take`."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> int:
        self.pieces.append(bytes(data))
        return len(self.pieces[-1])

    def flush(self) -> None:
        """Does nothing: the file has no buffer."""

    def close(self) -> None:
        self.closed = True

    def take(self) -> bytes:
        return b"".join(self.take_pieces())

    def take_pieces(self) -> list[bytes]:
        pieces, self.pieces = self.pieces, []
        return pieces


def dump_json(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, default=format_other, separators=(",", ":"))


def format_other(value: Any) -> str:
    """Returns a value that JSON lacks as orjson writes it."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
