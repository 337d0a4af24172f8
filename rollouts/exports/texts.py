"""Reads the recorded texts of samples in batches, in the order of steps and groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import polars as pl

from rollouts.exports.conversation import EXAMPLE_COLUMNS, Texts
from rollouts.exports.signals import GroupSample, get_group
from rollouts.models import DuplicateSource, Sample, SampleQuerySet
from rollouts.samples import BATCH_CHARS, BATCH_ROWS, KnownRows, load_bodies, parse_json, select_raw

GROUP_ORDER: Final = ("step__step", "step", "group", "prompt_key", "index", "ordinal", "pk")
TABLE_SCHEMA: Final = pl.Schema({"prompt": pl.String, "response": pl.String, "at": pl.Int64})

Bodies: TypeAlias = Sequence[tuple[list[int], pl.DataFrame]]  # texts with the positions of their samples in a batch


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Samples with what was read of them."""

    samples: Sequence[GroupSample]
    known: KnownRows
    bodies: Bodies

    @property
    def is_labelled(self) -> bool:
        """Whether some of the samples may have labels."""
        return any(sample.step_id in self.known.labelled for sample in self.samples)

    def has_messages(self) -> bool | None:
        """Whether the first sample with text has messages. Returns None if no sample has text."""
        texts = self.load_texts()
        return next((bool(texts[sample.pk].messages) for sample in self.samples if sample.pk in texts), None)

    def load_texts(self) -> dict[str, Texts]:
        """Returns the recorded texts by sample, without samples that have none."""
        texts: dict[str, Texts] = {}
        for positions, body in self.bodies:
            columns = [body[name].to_list() for name in EXAMPLE_COLUMNS if name in body.columns]
            columns[2:] = [[value and parse_json(value) for value in column] for column in columns[2:]]
            for position, prompt, response, *rest in zip(positions, *columns, strict=True):
                if response is not None:
                    texts[self.samples[position].pk] = Texts(prompt, response, *rest)
        return texts | self.load_merged_texts()

    def load_merged_texts(self) -> dict[str, Texts]:
        """Returns the texts of samples that are in several dumps."""
        ids = [sample.pk for sample in self.samples if sample.step_id in self.known.merged]
        if not ids:
            return {}
        merged = DuplicateSource.objects.filter(sample__in=ids).values("sample")
        bodies = load_bodies(list(Sample.objects.filter(pk__in=merged)), EXAMPLE_COLUMNS)
        return {
            pk: Texts(body.prompt, body.response, body.messages, body.tools)
            for pk, body in bodies.items()
            if not body.textless
        }

    def join_texts(self) -> pl.DataFrame:
        """Returns the columns `at`, which is the position of the sample, `prompt` and `response`, without samples that
        have no text."""
        tables = [
            body.with_columns(pl.Series("at", positions)).select(list(TABLE_SCHEMA)).cast(TABLE_SCHEMA)
            for positions, body in self.bodies
        ]
        if merged := self.load_merged_texts():
            at = {sample.pk: position for position, sample in enumerate(self.samples)}
            rows = [(text.prompt, text.response, at[pk]) for pk, text in merged.items()]
            tables = [table.filter(~pl.col("at").is_in([row[2] for row in rows])) for table in tables]
            tables.append(pl.DataFrame(rows, TABLE_SCHEMA, orient="row"))
        table = pl.concat([TABLE_SCHEMA.to_frame(), *tables], rechunk=False).filter(pl.col("response").is_not_null())
        return table if table["at"].is_sorted() else table.sort("at")


def iterate_batches(samples: SampleQuerySet, *, whole_groups: bool) -> Iterator[list[GroupSample]]:
    """Yields batches of about `BATCH_ROWS` samples or `BATCH_CHARS` characters, in the order of groups."""
    rows = samples.select_related(None).order_by(*GROUP_ORDER).values_list(*select_raw(GroupSample._fields))
    make_sample = partial(tuple.__new__, GroupSample)  # as `_make`, without a Python call for each row
    batch: list[GroupSample] = []
    chars = 0
    for sample in map(make_sample, rows.iterator(chunk_size=BATCH_ROWS)):
        is_full = len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS
        if is_full and not (whole_groups and get_group(sample) == get_group(batch[-1])):
            yield batch
            batch, chars = [], 0
        batch.append(sample)
        chars += sample.chars
    if batch:
        yield batch
