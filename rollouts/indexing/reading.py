"""Reads a dump: turns records into index rows and a Parquet body, in batches, and collects what is skipped."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
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
TOKEN_CHARS = 32  # memory of a token with its mask and log-prob, in characters of text
MAX_PROBLEMS = 20
MAX_MESSAGE_CHARS = 2000


class ClaimLostError(RolloutError):
    """Another worker has claimed the dump. The work of this worker is discarded."""

    permanent = True
    code = "claim_lost"


def clean_message(message: str) -> str:
    return message.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:MAX_MESSAGE_CHARS]


@dataclass(slots=True)
class DumpReading:
    """The state of reading one dump. `path` is the new body file, `skipped` is {reason: count}, and `problems` is
    [[line, reason], …]."""

    dump: Dump
    path: str
    index_rows: IndexRowBuilder = field(default_factory=IndexRowBuilder)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[list[int | str]] = field(default_factory=list)
    id_generator: SampleIdGenerator | None = None
    layout: BodyLayout | None = None
    writer: BodyWriter | None = None
    get_prompt_key: Callable[[str], str] = field(default_factory=lambda: lru_cache(BATCH_ROWS)(compute_prompt_key))

    def record_skipped(self, item: LineProblem | SkippedRow) -> None:
        if isinstance(item, SkippedRow):
            self.skipped[item.reason] += 1
            return
        self.skipped["mended line" if item.repaired else "bad line"] += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append([item.line, clean_message(item.reason)[:500]])

    def select(self, kind: type[T], items: Iterable[Item]) -> Iterator[T]:
        """Yields the records, or the points, among the items."""
        for item in items:
            if isinstance(item, kind):
                yield item
            elif isinstance(item, (LineProblem, SkippedRow)):
                self.record_skipped(item)

    def read_first(self, items: Iterator[Item]) -> Record | MetricPoint | None:
        for item in items:
            if isinstance(item, (Record, MetricPoint)):
                return item
            self.record_skipped(item)
        return None

    def write_body(self, records: Iterable[Record]) -> None:
        """Writes the body and builds the index rows, in batches that limit the memory."""
        try:
            for batch in iter_batches(records):
                self.write_batch(batch)
        finally:
            if self.writer:
                self.writer.close()

    def write_batch(self, batch: list[Record]) -> None:
        if self.writer and not self.dump.renew():
            raise ClaimLostError("Another worker has taken it over.")
        if self.id_generator is None:
            self.id_generator = create_id_generator(self.dump, batch[0])
        ids = self.id_generator.generate_ids([(record.prompt, record.response) for record in batch])
        keys = [self.get_prompt_key(record.prompt) for record in batch]
        self.layout = self.layout or BodyLayout.from_records(batch)
        table = self.layout.table(batch, ids, keys)
        self.writer = self.writer or BodyWriter(get_body_file_path(self.path), table.schema)
        self.writer.write(table)
        self.index_rows.add(batch, ids, keys)


def create_id_generator(dump: Dump, first: Record) -> SampleIdGenerator:
    """Raises UnreadableDumpError if neither the dump nor its first record has a step."""
    if dump.step is None:
        dump.step = to_integer(first.extras.get("step"))
    if dump.step is None:
        raise UnreadableDumpError("Neither the upload nor its records say which step this is; send it with `step`.")
    return SampleIdGenerator(dump.run.uid, dump.attempt.key, dump.split, dump.step_kind, dump.step, dump.producer)


def iter_batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    chars = 0
    for record in records:
        batch.append(record)
        tokens = len(record.prompt_ids or ()) + len(record.response_ids or ())
        chars += len(record.prompt) + len(record.response) + TOKEN_CHARS * tokens
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
