"""Reads a dump: turns records into index rows and a Parquet body, in batches, and collects what is skipped."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import monotonic
from typing import TypeVar

import pyarrow as pa

from rolloutdeck.protocol import compute_prompt_key
from rollouts import samples
from rollouts.errors import RolloutError, UnreadableDumpError
from rollouts.indexing.append_chunks import EarlierChunks, load_earlier_chunks
from rollouts.models import Dump, ForgottenPrompt
from rollouts.samples import IndexRowBuilder, LineProblem, MetricPoint, Record, SkippedRow

Item = Record | MetricPoint | LineProblem | SkippedRow
T = TypeVar("T", Record, MetricPoint)
RENEW_SECONDS = 30.0  # between two renewals of the claim while records are read that are not stored yet
BATCH_ROWS = 2048
BATCH_CHARS = 16 << 20
BATCH_BYTES = 8 << 20  # of the dump: limits the memory of records that have few texts and many other values
TOKEN_CHARS = 32  # memory of a token with its mask and log-prob, in characters of text
FORGOTTEN = "forgotten"  # the record has a prompt that the project has forgotten
MAX_PROBLEMS = 20  # stored of a dump
MAX_REASONS = 60  # stored of a dump, even if this makes more problems
BAD_LINE = "bad line"  # a line or row that could not be used
MAX_MESSAGE_CHARS = 2000


class ClaimLostError(RolloutError):
    """Another worker has claimed the dump. The work of this worker is discarded."""

    permanent = True
    code = "claim_lost"


def clean_message(message: str) -> str:
    return message.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:MAX_MESSAGE_CHARS]


@dataclass(slots=True)
class DumpReading:
    """`path` is `Segment.path` of the new body file, `get_position` the number of bytes read of the dump, `skipped` is
    {reason: count}, and `problems` is [[line, reason], …]. Records with a key in `forgotten` are left out. `earlier`:
    the chunks before it, if the dump is a chunk of a file and its ids continue their counts."""

    dump: Dump
    path: str
    get_position: Callable[[], int] = lambda: 0
    index_rows: IndexRowBuilder = field(default_factory=IndexRowBuilder)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[list[int | str]] = field(default_factory=list)
    id_generator: samples.SampleIdGenerator | None = None
    earlier: EarlierChunks = EarlierChunks({}, frozenset())
    continues_counts: bool = True
    layout: samples.BodyLayout | None = None
    writer: samples.BodyWriter | None = None
    body_bytes: int | None = None  # size of the body file; None if all records were left out, so there is none
    forgotten: frozenset[str] = frozenset()
    renewed_at: float = field(default_factory=monotonic)
    stored_images: set[str] = field(default_factory=set)
    get_prompt_key: Callable[[str], str] = field(default_factory=lambda: lru_cache(BATCH_ROWS)(compute_prompt_key))

    def __post_init__(self) -> None:
        self.forgotten = ForgottenPrompt.objects.load_keys(self.dump.run.project_id)

    def record_skipped(self, item: LineProblem | SkippedRow) -> None:
        if isinstance(item, SkippedRow):
            self.skipped[item.reason] += 1
            return
        self.skipped["mended line" if item.repaired else BAD_LINE] += 1
        if len(self.problems) >= MAX_REASONS:
            return
        reason = clean_message(item.reason)[:500]
        if len(self.problems) < MAX_PROBLEMS or all(reason != known for _, known in self.problems):
            self.problems.append([item.line, reason])

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

    def write_body(self, records: Iterable[Record], body: Path) -> None:
        """Writes the body file and builds the index rows, in batches that limit the memory."""
        try:
            owner = self.dump.run.image_owner
            kept = self.leave_out_forgotten(self.prepare_ids(records))
            extracted = (samples.extract_images(record, owner, self.stored_images) for record in kept)
            for batch in iter_batches(extracted, self.get_position):
                self.write_batch(batch, body)
        finally:
            if self.writer:
                self.writer.close()

    def prepare_ids(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields all records. With the first one it sets the step of the dump, and prepares the ids of its samples."""
        for record in records:
            if self.id_generator is None:
                self.id_generator = create_id_generator(self.dump, record)
                if self.continues_counts:
                    self.earlier = load_earlier_chunks(self.dump)
                    self.id_generator.skip_ids(self.earlier.ids)
            yield record

    def leave_out_forgotten(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the other records and counts the forgotten ones. Their images are not stored."""
        for record in records:
            if self.forgotten and self.get_prompt_key(samples.get_identity_texts(record)[0]) in self.forgotten:
                self.skipped[FORGOTTEN] += 1
            else:
                yield record

    def keep_claim(self, records: Iterable[Record]) -> Iterator[Record]:
        """Yields the records, and renews the claim meanwhile. Raises ClaimLostError."""
        for record in records:
            self.renew_claim()
            yield record

    def renew_claim(self) -> None:
        """Does nothing if that is not due yet. Raises ClaimLostError."""
        if monotonic() - self.renewed_at < RENEW_SECONDS:
            return
        if not self.dump.renew():
            raise ClaimLostError("Another worker has taken it over.")
        self.renewed_at = monotonic()

    def write_batch(self, batch: list[Record], body: Path) -> None:
        if self.writer and not self.dump.renew():
            raise ClaimLostError("Another worker has taken it over.")
        table, ids, keys = self.build_table(batch)
        self.writer = self.writer or samples.BodyWriter(body, table.schema)
        self.writer.write(table)
        self.index_rows.add(batch, ids, keys)

    def build_table(self, batch: list[Record]) -> tuple[pa.Table, list[str], list[str]]:
        """Returns the rows of the body, the sample ids and the prompt keys. Batches come in the order of the dump."""
        assert self.id_generator
        drop_step(batch, self.dump.step)
        texts = [samples.get_identity_texts(record) for record in batch]
        ids = self.id_generator.generate_ids(texts, [samples.take_earlier_count(record) for record in batch])
        keys = [self.get_prompt_key(prompt) for prompt, _ in texts]
        self.layout = self.layout or samples.BodyLayout.from_records(batch)
        return self.layout.table(batch, ids, keys), ids, keys


def create_id_generator(dump: Dump, first: Record) -> samples.SampleIdGenerator:
    """Raises UnreadableDumpError if neither the dump nor a record has a step."""
    if dump.step is None:
        dump.step = samples.to_integer(first.extras.get("step"))
    if dump.step is None:
        raise UnreadableDumpError("Neither the upload nor its records say which step this is; send it with `step`.")
    run, attempt = dump.run.uid, dump.attempt.key
    return samples.SampleIdGenerator(run, attempt, dump.split, dump.step_kind, dump.step, dump.producer)


def drop_step(batch: list[Record], step: int | None) -> None:
    """Removes the step from the extras of records if it is the step of their samples."""
    for record in batch:
        if record.extras.get("step") == step:
            record.extras.pop("step", None)


def iter_batches(records: Iterable[Record], get_position: Callable[[], int]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    chars, start = 0, get_position()
    for record in records:
        batch.append(record)
        tokens = len(record.prompt_ids or ()) + len(record.response_ids or ())
        chars += len(record.prompt) + len(record.response) + TOKEN_CHARS * tokens
        if get_position() == start:  # of a Parquet file the position says nothing
            others = [record.messages, record.tools, record.segments, record.timing, record.metrics]
            chars += samples.count_chars([*others, *record.extras.values()])
        if len(batch) >= BATCH_ROWS or chars >= BATCH_CHARS or get_position() - start >= BATCH_BYTES:
            yield batch
            batch, chars, start = [], 0, get_position()
    if batch:
        yield batch
