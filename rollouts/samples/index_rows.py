"""Builds the index rows of a dump from its records and inserts them. Lists sort, filter and preview index rows."""

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from django.db import connection

from rollouts.models import Sample
from rollouts.samples.parquet import replace_surrogates
from rollouts.samples.record import Record
from rollouts.samples.text_properties import (
    TEXT_PROPERTY_BITS,
    PropertyBits,
    ResponseScan,
    compute_text_properties,
    has_tool_call,
    scan_responses,
)
from rollouts.samples.values import to_integer

FIELDS = (
    "id", "step_id", "dump_id", "ordinal", "visible", "final", "group", "index", "trajectory", "prompt_key", "score",
    "correct", "advantage", "chars", "tokens", "truncated", "facets", "data_source", "expected", "tail",
)  # fmt: skip
FIELD_POSITIONS = {name: position for position, name in enumerate(FIELDS)}
# Computed per batch. The other fields are known at the end of the dump or belong to the step.
BATCH_FIELDS = (
    "id", "group", "index", "trajectory", "prompt_key", "score", "correct", "advantage", "tokens", "truncated",
    "data_source", "expected", "tail", "turn", "judged",
)  # fmt: skip
TYPES = {
    "index": pa.int64(), "score": pa.float64(), "correct": pa.bool_(), "advantage": pa.float64(),
    "tokens": pa.int64(), "truncated": pa.bool_(), "turn": pa.int64(), "judged": pa.bool_(),
}  # fmt: skip
# Positions of the fields that another dump of the same sample may fill.
FILLABLE = [
    FIELD_POSITIONS[name]
    for name in (
        "index", "trajectory", "score", "correct", "advantage", "tokens", "truncated", "data_source", "expected",
    )
]  # fmt: skip
MERGED_BITS = TEXT_PROPERTY_BITS["tokens"] | TEXT_PROPERTY_BITS["tool"] | TEXT_PROPERTY_BITS["filtered"]

TRAIT_FIELDS = ("has_marker", "has_ending")  # of ResponseScan
CUT_REASONS = ("length", "max_tokens", "max_length", "truncated")
TAIL_CHARS = 200
MAX_NUMBER = 1e100

IndexRow = tuple[Any, ...]
SampleKey = TypeVar("SampleKey", bound=Hashable)


class TrajectoryPosition(NamedTuple):
    """The trajectory and turn of a row, used to merge two records of a sample. `trajectory` is empty and `turn` is None
    if the dump has none. `judged`: the reward function logged `correct`."""

    trajectory: str
    turn: int | None
    judged: bool


class ResponseTraits(NamedTuple):
    """Traits of a response that matter only in comparison with the other responses of its step. Equal texts of one
    group have an equal `twin`. The other fields are those of `ResponseScan`."""

    twin: int
    has_marker: bool
    has_ending: bool


class IntermediateTracker(Generic[SampleKey]):
    """Collects the intermediate samples: those that are not the last of their trajectory, by turn, else by order."""

    def __init__(self) -> None:
        self.intermediate: set[SampleKey] = set()
        self._last: dict[Hashable, tuple[int, SampleKey]] = {}  # trajectory -> (turn, sample)

    def add(self, trajectory: Hashable, turn: int, sample: SampleKey) -> None:
        last = self._last.get(trajectory)
        if last and last[0] > turn:
            self.intermediate.add(sample)
            return
        if last:
            self.intermediate.add(last[1])
        self._last[trajectory] = turn, sample


def build_trajectory_key(trajectory: str, group: str, prompt_key: str) -> tuple[str, str]:
    """Returns the key of a trajectory: its name and its group. A group that is only the prompt key is left out, because
    each turn has another prompt."""
    return trajectory, "" if group == prompt_key else group


class IndexRowBuilder:
    """Builds the index rows of one dump in order, from batches. Stores older batches as Arrow tables to save memory."""

    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]] | pa.Table] = []
        self.scans: list[ResponseScan] = []
        self.twins: list[int] = []
        self.intermediate_tracker: IntermediateTracker[int] = IntermediateTracker()
        self.count = 0

    def add(self, records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> None:
        if self.batches and isinstance(self.batches[-1], dict):
            self.batches[-1] = pack_columns(self.batches[-1])
        self.scans.append(scan_records(records))
        columns = build_columns(records, ids, keys)
        self.twins += [hash((group, record.response)) for group, record in zip(columns["group"], records, strict=True)]
        turns = zip(*(columns[name] for name in ("trajectory", "group", "prompt_key", "turn")), strict=True)
        for row, (trajectory, group, key, turn) in enumerate(turns, self.count):
            if trajectory:
                self.intermediate_tracker.add(
                    build_trajectory_key(trajectory, group, key), row if turn is None else turn, row
                )
        self.batches.append(columns)
        self.count += len(records)

    def rows(self, step_id: int, dump_id: int) -> Iterator[IndexRow]:
        """Yields every row, all visible, with the fields in the order of `FIELDS`."""
        bits = self.compute_property_bits()
        chars, final = np.concatenate([scan.chars for scan in self.scans]), np.ones(self.count, bool)
        final[list(self.intermediate_tracker.intermediate)] = False
        start = 0
        for batch in self.batches:
            columns: dict[str, Sequence[Any]] = {name: read_column(batch, name) for name in BATCH_FIELDS}
            count = len(columns["id"])
            end = start + count
            columns |= {"step_id": [step_id] * count, "dump_id": [dump_id] * count, "visible": [True] * count}
            columns |= {"ordinal": range(start, end), "final": final[start:end].tolist()}
            columns |= {"chars": chars[start:end].tolist(), "facets": bits[start:end].tolist()}
            yield from zip(*(columns[name] for name in FIELDS), strict=True)
            start = end

    def positions(self) -> Iterator[TrajectoryPosition]:
        """Yields one per row, in the order of `rows`."""
        for batch in self.batches:
            columns = (read_column(batch, name) for name in TrajectoryPosition._fields)
            yield from map(TrajectoryPosition._make, zip(*columns, strict=True))

    def traits(self) -> Iterator[ResponseTraits]:
        """Yields one per row, in the order of `rows`."""
        flags = (chain.from_iterable(getattr(scan, name).tolist() for scan in self.scans) for name in TRAIT_FIELDS)
        yield from map(ResponseTraits, self.twins, *flags)

    def compute_property_bits(self) -> PropertyBits:
        tokens = list(chain.from_iterable(read_column(batch, "tokens") for batch in self.batches))
        truncated = list(chain.from_iterable(read_column(batch, "truncated") for batch in self.batches))
        traits = (np.concatenate([getattr(scan, name) for scan in self.scans]) for name in ResponseScan.__slots__)
        return compute_text_properties(ResponseScan(*traits), np.array(self.twins, np.int64), tokens, truncated)


def scan_records(records: Sequence[Record]) -> ResponseScan:
    """Scans a batch for text properties, including those that do not depend on the text."""
    scan = scan_responses([record.prompt for record in records], [record.response for record in records])
    scan.bits[np.array([record.textless for record in records], np.bool_)] = TEXT_PROPERTY_BITS["no-text"]
    has_property = {
        "tokens": [record.response_ids is not None for record in records],
        "tool": [has_tool_call(record.response, record.messages or ()) for record in records],
        "filtered": [record.extras.get("filtered") is True for record in records],
    }
    for name, flags in has_property.items():
        scan.bits[np.array(flags, np.bool_)] |= TEXT_PROPERTY_BITS[name]
    return scan


def pack_columns(columns: dict[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.array(columns[name], TYPES.get(name, pa.string())) for name in BATCH_FIELDS})


def read_column(batch: Any, name: str) -> list[Any]:
    values = batch[name]
    return values if isinstance(values, list) else list(values.to_pylist())


def build_columns(records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the columns that depend only on the record."""
    short_names = ShortNames()
    return {
        "id": list(ids),
        "group": [short_names[record.group or key, 64] for record, key in zip(records, keys, strict=True)],
        "index": [to_integer(record.index, bits=32) for record in records],
        "trajectory": [short_names[record.trajectory or "", 80] for record in records],
        "prompt_key": list(keys),
        "score": [limit_number(record.score) for record in records],
        "correct": [is_correct(record) for record in records],
        "advantage": [limit_number(compute_mean(record.advantages)) for record in records],
        "tokens": [count_tokens(record) for record in records],
        "truncated": [is_truncated(record) for record in records],
        "data_source": [short_names[record.data_source or "", 120] for record in records],
        "expected": [clean_text(record.ground_truth[:80]) if record.ground_truth else "" for record in records],
        "tail": [clean_text(" ".join(record.response[-TAIL_CHARS:].split())) for record in records],
        "turn": [record.turn for record in records],
        "judged": [get_logged_accuracy(record) is not None for record in records],
    }


def limit_number(number: float | None) -> float | None:
    """Returns a number that is safe in an average, else None: PostgreSQL squares values. The body stores any number."""
    return number if number is None or -MAX_NUMBER < number < MAX_NUMBER else None


class ShortNames(dict[tuple[str, int], str]):
    """Names of a batch, shortened to fit their columns. Caches each name because names repeat."""

    def __missing__(self, key: tuple[str, int]) -> str:
        self[key] = shorten_name(*key)
        return self[key]


def clean_text(text: str) -> str:
    """Returns text that any database accepts: no NUL, no lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text)
    return text


def shorten_name(text: str, limit: int) -> str:
    """Returns a name that fits its column. A longer name ends in a hash of the full name, so it stays unique."""
    if len(text) <= limit:
        return clean_text(text)
    ending = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{clean_text(text[: limit - 17])}~{ending}"


def is_correct(record: Record) -> bool | None:
    """Applies the default rule: `acc=1` if it was logged, else `score>0`; None if neither was logged."""
    acc = get_logged_accuracy(record)
    if acc is not None:
        return acc == 1
    return None if record.score is None else record.score > 0


def get_logged_accuracy(record: Record) -> float | None:
    acc = record.rewards.get("acc")
    if acc is None:
        acc = record.extras.get("acc")
    return acc if isinstance(acc, (int, float)) else None


def is_truncated(record: Record) -> bool | None:
    if record.truncated is not None or not record.finish_reason:
        return record.truncated
    return record.finish_reason.lower() in CUT_REASONS


def count_tokens(record: Record) -> int | None:
    """Returns the number of response tokens, or None if neither the tokens nor their number was recorded."""
    if record.response_ids is not None:
        return len(record.response_ids)
    length = record.extras.get("response_length")
    return int(length) if isinstance(length, (int, float)) and 0 <= length < 2**31 else None


def compute_mean(values: list[float | None] | None) -> float | None:
    known = [value for value in values if value is not None] if values else []
    return sum(known) / len(known) if known else None


def fill_missing_values(row: IndexRow, other: IndexRow) -> IndexRow:
    """Returns `row` with its missing values filled from the row of another dump of the same sample."""
    empty = (None, "")
    missing = [position for position in FILLABLE if row[position] in empty and other[position] not in empty]
    facets = FIELD_POSITIONS["facets"]
    more_bits = other[facets] & ~row[facets] & MERGED_BITS
    if not missing and not more_bits:
        return row
    filled = list(row)
    filled[facets] |= more_bits
    for position in missing:
        filled[position] = other[position]
    if FIELD_POSITIONS["truncated"] in missing:
        filled[facets] &= ~TEXT_PROPERTY_BITS["trunc?"]
    return tuple(filled)


def insert_index_rows(rows: Iterable[IndexRow]) -> None:
    """Inserts rows with COPY on PostgreSQL, else with executemany. `bulk_create` takes four times as long."""
    names = [connection.ops.quote_name(name) for name in FIELDS]
    table, columns = connection.ops.quote_name(Sample._meta.db_table), ", ".join(names)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        placeholders = ", ".join(["%s"] * len(FIELDS))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({placeholders})"  # noqa: S608  names from code
        remaining = iter(rows)
        while part := sorted(islice(remaining, 5000)):  # sorted by id: each page of the index is written once
            cursor.executemany(statement, part)
