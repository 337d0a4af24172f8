"""A dump while it is read: records in batches become index rows and a Parquet body; what is left out is noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from rollouts.errors import RolloutError, UnreadableDumpError
from rollouts.models import Dump
from rollouts.samples import (
    BodyLayout,
    BodyWriter,
    IndexRowBuilder,
    LineProblem,
    MetricPoint,
    Record,
    SampleIdGenerator,
    SkippedRow,
    compute_prompt_key,
    to_integer,
)
from rollouts.storage import get_body_file_path

Item = Record | MetricPoint | LineProblem | SkippedRow
T = TypeVar("T", Record, MetricPoint)
BATCH_ROWS = 2048
BATCH_CHARS = 16 << 20
TOKEN_CHARS = 32  # what a token with its mask and log-prob takes in memory, in characters of text
SHOWN_PROBLEMS = 20


class ClaimLostError(RolloutError):
    """Another worker has taken the dump over; what this one did is thrown away."""

    permanent = True
    code = "claim_lost"


def printable(message: str) -> str:
    return message.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:2000]


@dataclass(slots=True)
class DumpReading:
    """A dump while it is read: its slim rows, the body it writes, and what is to be said of it."""

    dump: Dump
    path: str
    slim: IndexRowBuilder = field(default_factory=IndexRowBuilder)
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[list[int | str]] = field(default_factory=list)
    namer: SampleIdGenerator | None = None
    layout: BodyLayout | None = None
    writer: BodyWriter | None = None
    keys: dict[str, str] = field(default_factory=dict)

    def note(self, item: LineProblem | SkippedRow) -> None:
        if isinstance(item, SkippedRow):
            self.left_out[item.reason] += 1
            return
        self.left_out["mended line" if item.repaired else "bad line"] += 1
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append([item.line, printable(item.reason)[:500]])

    def only(self, kind: type[T], items: Iterable[Item]) -> Iterator[T]:
        """The records or points among the items; the others are noted."""
        for item in items:
            if isinstance(item, kind):
                yield item
            elif isinstance(item, (LineProblem, SkippedRow)):
                self.note(item)

    def first(self, items: Iterator[Item]) -> Record | MetricPoint | None:
        """The first item that is something; what comes before it is noted."""
        for item in items:
            if isinstance(item, (Record, MetricPoint)):
                return item
            self.note(item)
        return None

    def read(self, records: Iterable[Record]) -> None:
        """Takes the records in batches that bound the memory, and writes the body."""
        try:
            for batch in batches(records):
                self.take(batch)
        finally:
            if self.writer:
                self.writer.close()

    def take(self, batch: list[Record]) -> None:
        if self.writer and not self.dump.renew():
            raise ClaimLostError("Another worker has taken it over.")
        if self.namer is None:
            self.namer = namer_of(self.dump, batch[0])
        ids = self.namer.generate_ids([(record.prompt, record.response) for record in batch])
        keys = [self.key(record.prompt) for record in batch]
        self.layout = self.layout or BodyLayout.from_records(batch)
        table = self.layout.table(batch, ids, keys)
        self.writer = self.writer or BodyWriter(get_body_file_path(self.path), table.schema)
        self.writer.write(table)
        self.slim.add(batch, ids, keys)

    def key(self, prompt: str) -> str:
        known = self.keys.get(prompt)
        if known is None:
            if len(self.keys) >= BATCH_ROWS:
                self.keys.clear()
            known = self.keys[prompt] = compute_prompt_key(prompt)
        return known


def namer_of(dump: Dump, first: Record) -> SampleIdGenerator:
    """Raises UnreadableDump when neither the dump nor its first record says the step."""
    if dump.step is None:
        dump.step = to_integer(first.extras.get("step"))
    if dump.step is None:
        raise UnreadableDumpError("Neither the upload nor its records say which step this is; send it with `step`.")
    return SampleIdGenerator(dump.run.uid, dump.attempt.key, dump.split, dump.step_kind, dump.step, dump.producer)


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    chars = 0
    for record in records:
        batch.append(record)
        chars += len(record.prompt) + len(record.response) + TOKEN_CHARS * tokens_of(record)
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def tokens_of(record: Record) -> int:
    return len(record.prompt_ids or ()) + len(record.response_ids or ())
