"""Builds the index rows of a dump from its records and inserts them. Lists sort, filter and preview index rows."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa
from django.db import connection

from rolloutdeck.protocol import GUIDANCE_FIELD, parse_rule_keys
from rollouts.models import Sample
from rollouts.samples.index_values import (
    ShortNames,
    clean_text,
    compute_mean_advantage,
    count_tokens,
    get_logged_accuracy,
    is_correct,
    is_truncated,
    limit_number,
    serialize_parts,
)
from rollouts.samples.record import Record
from rollouts.samples.responses import (
    MAX_STORED_CHARS,
    TEXT_PROPERTY_BITS,
    AnswerChecker,
    PropertyBits,
    ResponseScan,
    Template,
    compute_text_properties,
    differs,
    find_templates,
    has_tool_call,
    mask_edges,
    scan_responses,
)
from rollouts.samples.timing import compute_staleness, read_duration
from rollouts.samples.values import to_integer

FIELDS = (
    "id", "step_id", "dump_id", "ordinal", "visible", "final", "group", "index", "trajectory", "prompt_key", "score",
    "correct", "advantage", "chars", "tokens", "truncated", "staleness", "duration", "facets", "data_source",
    "expected", "answer", "tail", "parts", "opening", "ending",
)  # fmt: skip
FIELD_POSITIONS = {name: position for position, name in enumerate(FIELDS)}
# Computed per batch. The other fields are known at the end of the dump or belong to the step.
BATCH_FIELDS = (
    "id", "group", "index", "trajectory", "prompt_key", "score", "correct", "advantage", "tokens", "truncated",
    "staleness", "duration", "data_source", "expected", "answer", "tail", "parts", "opening", "ending", "turn",
    "judged",
)  # fmt: skip
TYPES = {
    "index": pa.int64(), "score": pa.float64(), "correct": pa.bool_(), "advantage": pa.float64(),
    "tokens": pa.int64(), "truncated": pa.bool_(), "staleness": pa.int64(), "duration": pa.float64(),
    "turn": pa.int64(), "judged": pa.bool_(),
}  # fmt: skip
# Positions of the fields that another dump of the same sample may fill.
FILLABLE = [
    FIELD_POSITIONS[name]
    for name in (
        "index", "trajectory", "score", "correct", "advantage", "tokens", "truncated", "staleness", "duration",
        "data_source", "expected", "answer", "parts",
    )
]  # fmt: skip
EXPECTED, ANSWER, PARTS = (FIELD_POSITIONS[name] for name in ("expected", "answer", "parts"))
OTHER_ANSWER_BIT = TEXT_PROPERTY_BITS["other-answer"]
MERGED_BITS = sum(TEXT_PROPERTY_BITS[name] for name in ("tokens", "tool", "filtered", "guided"))

TRAIT_FIELDS = ("has_marker", "has_ending")  # of ResponseScan
TAIL_CHARS = 200
EXPECTED_CHARS = 80

IndexRow = tuple[Any, ...]
SampleKey = TypeVar("SampleKey", bound=Hashable)


class TrajectoryPosition(NamedTuple):
    """The trajectory and turn of a row, used to merge two records of a sample. `trajectory` is empty and `turn` is None
    if the dump has none. `judged`: the reward function logged `acc`."""

    trajectory: str
    turn: int | None
    judged: bool


class ResponseTraits(NamedTuple):
    """Traits of a response that matter only in comparison with the other responses of its step. Equal texts of one
    group have an equal `twin`. `opening` and `ending` are its masked edges, see `templates.py`. The other fields are
    those of `ResponseScan`."""

    twin: int
    opening: str
    ending: str
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
    """Returns the name and the group, without a group that is only the prompt key, which each turn changes."""
    return trajectory, "" if group == prompt_key else group


class IndexRowBuilder:
    """Builds the index rows of one dump in order, from batches. Stores older batches as Arrow tables to save memory."""

    def __init__(self) -> None:
        self.batches: list[dict[str, list[Any]] | pa.Table] = []
        self.scans: list[ResponseScan] = []
        self.twins: list[int] = []
        self.intermediate_tracker: IntermediateTracker[int] = IntermediateTracker()
        self.answer_checker = AnswerChecker()
        self.templates: list[Template] = []
        self.count = 0

    def add(self, records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> None:
        if self.batches and isinstance(self.batches[-1], dict):
            self.batches[-1] = pack_columns(self.batches[-1])
        answers = self.answer_checker.check_records(records)
        self.scans.append(scan_records(records, [differs for _, differs in answers]))
        columns = build_columns(records, ids, keys) | {"answer": [clean_text(answer) for answer, _ in answers]}
        self.twins += [hash((group, record.response)) for group, record in zip(columns["group"], records, strict=True)]
        turns = zip(*(columns[name] for name in ("trajectory", "group", "prompt_key", "turn")), strict=True)
        for row, (trajectory, group, key, turn) in enumerate(turns, self.count):
            if trajectory:
                trajectory_key = build_trajectory_key(trajectory, group, key)
                self.intermediate_tracker.add(trajectory_key, row if turn is None else turn, row)
        self.batches.append(columns)
        self.count += len(records)

    def rows(self, step_id: int, dump_id: int) -> Iterator[IndexRow]:
        """Yields every row, all visible, with the fields in the order of `FIELDS`. Sets `templates`."""
        if not self.batches:
            return
        bits = self.compute_property_bits()
        edges = find_templates(*(self.read_all(name) for name in ("opening", "ending", "group", "score")))
        self.templates = edges.templates
        chars, final = np.concatenate([scan.chars for scan in self.scans]), np.ones(self.count, bool)
        final[list(self.intermediate_tracker.intermediate)] = False
        end = 0
        for batch in self.batches:
            columns: dict[str, Sequence[Any]] = {name: read_column(batch, name) for name in BATCH_FIELDS}
            count = len(columns["id"])
            start, end = end, end + count
            columns |= {"step_id": [step_id] * count, "dump_id": [dump_id] * count, "visible": [True] * count}
            columns |= {"ordinal": range(start, end), "final": final[start:end].tolist()}
            columns |= {"chars": chars[start:end].tolist(), "facets": bits[start:end].tolist()}
            columns |= {"opening": edges.openings[start:end], "ending": edges.endings[start:end]}
            yield from zip(*(columns[name] for name in FIELDS), strict=True)

    def ids(self) -> Iterator[str]:
        """Yields one per row, in the order of `rows`."""
        return chain.from_iterable(read_column(batch, "id") for batch in self.batches)

    def positions(self) -> Iterator[TrajectoryPosition]:
        """Yields one per row, in the order of `rows`."""
        for batch in self.batches:
            columns = (read_column(batch, name) for name in TrajectoryPosition._fields)
            yield from map(TrajectoryPosition._make, zip(*columns, strict=True))

    def traits(self) -> Iterator[ResponseTraits]:
        """Yields one per row, in the order of `rows`."""
        flags = (chain.from_iterable(getattr(scan, name).tolist() for scan in self.scans) for name in TRAIT_FIELDS)
        edges = (self.read_all(name) for name in ("opening", "ending"))
        yield from map(ResponseTraits, self.twins, *edges, *flags)

    def read_all(self, name: str) -> list[Any]:
        """Returns a column of all batches."""
        return list(chain.from_iterable(read_column(batch, name) for batch in self.batches))

    def compute_property_bits(self) -> PropertyBits:
        tokens, truncated = self.read_all("tokens"), self.read_all("truncated")
        traits = (np.concatenate([getattr(scan, name) for scan in self.scans]) for name in ResponseScan.__slots__)
        scan, twins = ResponseScan(*traits), np.array(self.twins, np.int64)
        return compute_text_properties(scan, twins, tokens, truncated)


def scan_records(records: Sequence[Record], differing_answers: Sequence[bool]) -> ResponseScan:
    """Scans a batch for text properties, including those that do not depend on the text."""
    scan = scan_responses([record.prompt for record in records], [record.response for record in records])
    scan.bits[np.array([record.textless for record in records], np.bool_)] = TEXT_PROPERTY_BITS["no-text"]
    has_property = {
        "tokens": [record.response_ids is not None for record in records],
        "tool": [has_tool_call(record.response, record.messages) for record in records],
        "filtered": [record.extras.get("filtered") == 1 for record in records],
        "guided": [bool(parse_rule_keys(record.extras.get(GUIDANCE_FIELD))) for record in records],
        "other-answer": differing_answers,
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
    """Returns the columns that depend only on the record, without `answer`."""
    short_names = ShortNames()
    edges = [mask_edges(record.response) for record in records]
    return {
        "id": list(ids),
        "group": [short_names[record.group or key, 64] for record, key in zip(records, keys, strict=True)],
        "index": [to_integer(record.index, bits=32) for record in records],
        "trajectory": [short_names[record.trajectory or "", 80] for record in records],
        "prompt_key": list(keys),
        "score": [limit_number(record.score) for record in records],
        "correct": [is_correct(record) for record in records],
        "advantage": [limit_number(compute_mean_advantage(record.advantages)) for record in records],
        "tokens": [count_tokens(record) for record in records],
        "truncated": [is_truncated(record) for record in records],
        "staleness": [compute_staleness(record) for record in records],
        "duration": [read_duration(record) for record in records],
        "data_source": [short_names[record.data_source or "", 120] for record in records],
        "expected": [
            clean_text(record.ground_truth[:EXPECTED_CHARS]) if record.ground_truth else "" for record in records
        ],
        "tail": [clean_text(" ".join(record.response[-TAIL_CHARS:].split())) for record in records],
        "parts": [serialize_parts(record.rewards) for record in records],
        "opening": [clean_text(opening) for opening, _ in edges],
        "ending": [clean_text(ending) for _, ending in edges],
        "turn": [record.turn for record in records],
        "judged": [get_logged_accuracy(record) is not None for record in records],
    }


def fill_missing_values(row: IndexRow, other: IndexRow) -> IndexRow:
    """Returns `row` with its missing values filled from the row of another dump of the same sample."""
    empty = (None, "")
    missing = [position for position in FILLABLE if row[position] in empty and other[position] not in empty]
    facets = FIELD_POSITIONS["facets"]
    more_bits = other[facets] & ~row[facets] & MERGED_BITS
    is_more_parts = bool(row[PARTS] and other[PARTS] and row[PARTS] != other[PARTS])
    if not missing and not more_bits and not is_more_parts:
        return row
    filled = list(row)
    filled[facets] |= more_bits
    for position in missing:
        filled[position] = other[position]
    if ANSWER in missing or EXPECTED in missing:
        filled[facets] = filled[facets] & ~OTHER_ANSWER_BIT | compare_filled_answer(filled, other)
    if is_more_parts:
        filled[PARTS] = orjson.dumps(orjson.loads(other[PARTS]) | orjson.loads(row[PARTS])).decode()
    if FIELD_POSITIONS["truncated"] in missing:
        filled[facets] &= ~TEXT_PROPERTY_BITS["trunc?"]
    return tuple(filled)


def compare_filled_answer(filled: Sequence[Any], other: IndexRow) -> int:
    """Returns the bit `other-answer` of a row whose answer or ground truth was filled from `other`."""
    if other[ANSWER] and other[EXPECTED]:
        return int(other[FIELD_POSITIONS["facets"]] & OTHER_ANSWER_BIT)
    is_complete = len(filled[EXPECTED]) < EXPECTED_CHARS and len(filled[ANSWER]) < MAX_STORED_CHARS
    return OTHER_ANSWER_BIT if is_complete and differs(filled[ANSWER], filled[EXPECTED]) else 0


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
