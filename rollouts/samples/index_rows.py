"""The slim rows of a dump: what lists sort, filter and preview, from its records to the database."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from django.db import connection

from rollouts.models import Sample
from rollouts.samples import text_properties
from rollouts.samples.parquet import replace_surrogates
from rollouts.samples.record import Record

FIELDS = (
    "id", "step_id", "dump_id", "ordinal", "visible", "final", "group", "index", "trajectory", "prompt_key", "score",
    "correct", "advantage", "chars", "tokens", "truncated", "facets", "data_source", "expected", "tail",
)  # fmt: skip
FIELD_POSITIONS = {name: place for place, name in enumerate(FIELDS)}
# Found in each batch; the rest of a row is known at the end of the dump or belongs to the step.
BATCH = (
    "id", "group", "index", "trajectory", "prompt_key", "score", "correct", "advantage", "tokens", "truncated",
    "data_source", "expected", "tail", "turn", "judged",
)  # fmt: skip
TYPES = {
    "index": pa.int64(), "score": pa.float64(), "correct": pa.bool_(), "advantage": pa.float64(),
    "tokens": pa.int64(), "truncated": pa.bool_(), "turn": pa.int64(), "judged": pa.bool_(),
}  # fmt: skip
# What another source of the same sample may fill in.
FILLABLE = (
    "index", "trajectory", "score", "correct", "advantage", "tokens", "truncated", "data_source", "expected",
)  # fmt: skip
JOINED = (
    text_properties.TEXT_PROPERTY_BITS["tokens"]
    | text_properties.TEXT_PROPERTY_BITS["tool"]
    | text_properties.TEXT_PROPERTY_BITS["filtered"]
)

MARKS = ("marked", "ended")  # of facets.Seen
CUT_REASONS = ("length", "max_tokens", "max_length", "truncated")
TAIL = 200
MOST_NUMBER = 1e100

IndexRow = tuple[Any, ...]
One = TypeVar("One", bound=Hashable)


class TrajectoryPosition(NamedTuple):
    """Where a row stands in its step, and what else decides how two sights of a sample join. `trajectory` is empty and
    `turn` None where the dump does not say; `judged`: `correct` is the reward function's own word."""

    trajectory: str
    turn: int | None
    judged: bool


class ResponseTraits(NamedTuple):
    """What a response shows that says something only beside the others of its step: equal texts of one group have
    equal `twin`s; see `facets.Seen`."""

    twin: int
    marked: bool
    ended: bool


class IntermediateTracker(Generic[One]):
    """Which samples are `inner`: another one of their trajectory ends it, by turn, else by order."""

    def __init__(self) -> None:
        self.inner: set[One] = set()
        self._last: dict[Hashable, tuple[int, One]] = {}  # trajectory -> (turn, sample)

    def follow(self, whose: Hashable, turn: int, sample: One) -> None:
        last = self._last.get(whose)
        if last and last[0] > turn:
            self.inner.add(sample)
            return
        if last:
            self.inner.add(last[1])
        self._last[whose] = turn, sample


def build_trajectory_key(trajectory: str, group: str, prompt_key: str) -> tuple[str, str]:
    """A trajectory's name counts in its group; a group that only its prompt names says nothing, each turn has its
    own."""
    return trajectory, "" if group == prompt_key else group


class IndexRowBuilder:
    """Rows of one dump in its order, fed in batches. Small while it grows: older batches rest as Arrow tables."""

    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]] | pa.Table] = []
        self.seen: list[text_properties.ResponseScan] = []
        self.twins: list[int] = []
        self.ends: IntermediateTracker[int] = IntermediateTracker()
        self.count = 0

    def add(self, records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> None:
        if self.batches and isinstance(self.batches[-1], dict):
            self.batches[-1] = packed(self.batches[-1])
        self.seen.append(looked_at(records))
        columns = batch(records, ids, keys)
        self.twins += [hash((group, record.response)) for group, record in zip(columns["group"], records, strict=True)]
        named = zip(*(columns[name] for name in ("trajectory", "group", "prompt_key", "turn")), strict=True)
        for row, (trajectory, group, key, turn) in enumerate(named, self.count):
            if trajectory:
                self.ends.follow(build_trajectory_key(trajectory, group, key), row if turn is None else turn, row)
        self.batches.append(columns)
        self.count += len(records)

    def rows(self, step_id: int, dump_id: int) -> Iterator[IndexRow]:
        """Every row, visible, in the order of `FIELDS`."""
        columns = [batch if isinstance(batch, dict) else None for batch in self.batches]
        bits, chars, final = self.bits(), np.concatenate([seen.chars for seen in self.seen]), np.ones(self.count, bool)
        final[list(self.ends.inner)] = False
        start = 0
        for place, known in enumerate(columns):
            part = known or unpacked(self.batches[place])
            end = start + len(part["id"])
            own = {
                "step_id": [step_id] * (end - start),
                "dump_id": [dump_id] * (end - start),
                "ordinal": range(start, end),
                "visible": [True] * (end - start),
                "final": final[start:end].tolist(),
                "chars": chars[start:end].tolist(),
                "facets": bits[start:end].tolist(),
            }
            yield from zip(*(part[name] if name in part else own[name] for name in FIELDS), strict=True)
            start = end

    def places(self) -> Iterator[TrajectoryPosition]:
        """Of every row, in the order of `rows`."""
        for batch in self.batches:
            named = (column(batch, name) for name in TrajectoryPosition._fields)
            yield from map(TrajectoryPosition._make, zip(*named, strict=True))

    def traits(self) -> Iterator[ResponseTraits]:
        """Of every row, in the order of `rows`."""
        marked, ended = (chain.from_iterable(getattr(seen, name).tolist() for seen in self.seen) for name in MARKS)
        yield from map(ResponseTraits, self.twins, marked, ended)

    def bits(self) -> text_properties.PropertyBits:
        tokens = list(chain.from_iterable(column(batch, "tokens") for batch in self.batches))
        told = list(chain.from_iterable(column(batch, "truncated") for batch in self.batches))
        whole = text_properties.ResponseScan(
            *(
                np.concatenate([getattr(seen, name) for seen in self.seen])
                for name in text_properties.ResponseScan.__slots__
            )
        )
        return text_properties.compute_text_properties(whole, np.array(self.twins, np.int64), tokens, told)


def looked_at(records: Sequence[Record]) -> text_properties.ResponseScan:
    """Facets of a batch, those that the text does not tell included."""
    seen = text_properties.scan_responses(
        [record.prompt for record in records], [record.response for record in records]
    )
    textless = np.fromiter((record.textless for record in records), np.bool_, len(records))
    seen.bits[textless] = text_properties.TEXT_PROPERTY_BITS["no-text"]
    with_ids = np.fromiter((record.response_ids is not None for record in records), np.bool_, len(records))
    seen.bits[with_ids] |= text_properties.TEXT_PROPERTY_BITS["tokens"]
    with_tools = [text_properties.has_tool_call(record.response, record.messages or ()) for record in records]
    seen.bits[np.array(with_tools, np.bool_)] |= text_properties.TEXT_PROPERTY_BITS["tool"]
    dropped = np.fromiter((record.extras.get("filtered") is True for record in records), np.bool_, len(records))
    seen.bits[dropped] |= text_properties.TEXT_PROPERTY_BITS["filtered"]
    return seen


def packed(columns: dict[str, list[Any]]) -> pa.Table:
    return pa.table({name: pa.array(columns[name], TYPES.get(name, pa.string())) for name in BATCH})


def unpacked(table: Any) -> dict[str, list[Any]]:
    return {name: table[name].to_pylist() for name in BATCH}


def column(batch: Any, name: str) -> list[Any]:
    found = batch[name]
    return found if isinstance(found, list) else list(found.to_pylist())


def batch(records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> dict[str, list[Any]]:
    """The columns that a record alone decides."""
    short = Shortened()
    return {
        "id": list(ids),
        "group": [short[record.group or key, 64] for record, key in zip(records, keys, strict=True)],
        "index": [
            record.index if record.index is None or -(2**31) <= record.index < 2**31 else None for record in records
        ],
        "trajectory": [short[record.trajectory or "", 80] for record in records],
        "prompt_key": list(keys),
        "score": [summable(record.score) for record in records],
        "correct": [is_correct(record) for record in records],
        "advantage": [summable(mean(record.advantages)) for record in records],
        "tokens": [token_count(record) for record in records],
        "truncated": [is_truncated(record) for record in records],
        "data_source": [short[record.data_source or "", 120] for record in records],
        "expected": [preview(record.ground_truth[:80]) if record.ground_truth else "" for record in records],
        "tail": [preview(" ".join(record.response[-TAIL:].split())) for record in records],
        "turn": [record.turn for record in records],
        "judged": [logged_acc(record) is not None for record in records],
    }


def summable(number: float | None) -> float | None:
    """A number that may stand among others in a mean; PostgreSQL squares what it averages. The body keeps any."""
    return number if number is None or -MOST_NUMBER < number < MOST_NUMBER else None


class Shortened(dict[tuple[str, int], str]):
    """Names of a batch made to fit their columns, each once: they come again and again."""

    def __missing__(self, key: tuple[str, int]) -> str:
        self[key] = fitting(*key)
        return self[key]


def preview(text: str) -> str:
    """Text that any database takes: no NUL, no half surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text)
    return text


def fitting(text: str, most: int) -> str:
    """A name that fits its column; one that is too long ends in a hash of all of it, so it stays a name of its own."""
    if len(text) <= most:
        return preview(text)
    ending = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{preview(text[: most - 17])}~{ending}"


def is_correct(record: Record) -> bool | None:
    """The default rule: `acc=1` where it was logged, else `score>0`; None where neither was."""
    acc = logged_acc(record)
    if acc is not None:
        return acc == 1
    return None if record.score is None else record.score > 0


def logged_acc(record: Record) -> float | None:
    acc = record.rewards.get("acc")
    if acc is None:
        acc = record.extras.get("acc")
    return acc if isinstance(acc, (int, float)) else None


def is_truncated(record: Record) -> bool | None:
    if record.truncated is not None or not record.finish_reason:
        return record.truncated
    return record.finish_reason.lower() in CUT_REASONS


def token_count(record: Record) -> int | None:
    """Tokens of the response, where they or their number were recorded."""
    if record.response_ids is not None:
        return len(record.response_ids)
    told = record.extras.get("response_length")
    return int(told) if isinstance(told, (int, float)) and 0 <= told < 2**31 else None


def mean(values: list[float | None] | None) -> float | None:
    known = [value for value in values if value is not None] if values else []
    return sum(known) / len(known) if known else None


def fill_missing_values(row: IndexRow, other: IndexRow) -> IndexRow:
    """`row` with what it lacks taken from another sight of the same sample."""
    lacking = [
        name
        for name in FILLABLE
        if row[FIELD_POSITIONS[name]] in (None, "") and other[FIELD_POSITIONS[name]] not in (None, "")
    ]
    more = other[FIELD_POSITIONS["facets"]] & ~row[FIELD_POSITIONS["facets"]] & JOINED
    if not lacking and not more:
        return row
    made = list(row)
    made[FIELD_POSITIONS["facets"]] |= more
    for name in lacking:
        made[FIELD_POSITIONS[name]] = other[FIELD_POSITIONS[name]]
    if "truncated" in lacking:
        made[FIELD_POSITIONS["facets"]] &= ~text_properties.TEXT_PROPERTY_BITS["trunc?"]
    return tuple(made)


def insert_index_rows(rows: Iterable[IndexRow]) -> None:
    """COPY on PostgreSQL, executemany elsewhere: `bulk_create` takes four times as long."""
    names = [connection.ops.quote_name(name) for name in FIELDS]
    table, columns = connection.ops.quote_name(Sample._meta.db_table), ", ".join(names)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            return
        marks = ", ".join(["%s"] * len(FIELDS))
        statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608  our own names only
        every = iter(rows)
        while part := sorted(islice(every, 5000)):  # by id: the pages of its index are written once
            cursor.executemany(statement, part)
