"""Sample bodies as Parquet: the schema (version 1), how records become a table, and how a row becomes a record again.

Columns, in this order, are always all there:

    id, prompt_key                     the sample's names, see identity.py
    prompt, response                   text; half surrogates as U+FFFD, which Arrow cannot hold (the raw dump can);
                                       a null response is one of which only the tokens were recorded
    score double; group, trajectory, ground_truth, data_source, finish_reason string; index, turn, policy_version
    int64; truncated bool; prompt_ids, response_ids list<int32>; response_mask list<int8>; logprobs, ref_logprobs,
    advantages list<float>
    messages, timing, metrics, segments, tools, more     JSON text

Then the keys of the run's own: `num.<key>` double (booleans too), `str.<key>` string, `json.<key>` for lists and
objects. A `num.` column whose metadata says part=reward is a part of the reward. A key that only appears in later
batches of a dump, or is one too many, is in `more`. Row groups end at 128 rows or 4 MB of text, and before and behind
a row of 1 MB, so that it is read alone; zstd-1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.samples.record import Record
from rollouts.samples.values import to_json

BODY_SCHEMA_VERSION = 1
GROUP_ROWS = 128
GROUP_BYTES = 4 << 20
LONG_ROW_BYTES = 1 << 20  # bytes
MOST_KEYS = 300
MOST_KEY_CHARS = 200

TEXTS = ("group", "trajectory", "ground_truth", "data_source", "finish_reason")
INTEGERS = ("index", "turn", "policy_version")
ARRAYS = {
    "prompt_ids": pa.int32(), "response_ids": pa.int32(), "response_mask": pa.int8(),
    "logprobs": pa.float32(), "ref_logprobs": pa.float32(), "advantages": pa.float32(),
}  # fmt: skip
JSONS = ("messages", "timing", "metrics", "segments", "tools")
REWARD_METADATA = {b"part": b"reward"}
# Which column takes a value: `num` (booleans too), `str` or `json`.
HOMES: dict[type, str] = {
    float: "num", int: "num", bool: "num", str: "str", dict: "json", list: "json", type(None): "",
}  # fmt: skip

FIXED_FIELDS: tuple[pa.Field, ...] = (
    pa.field("id", pa.string()),
    pa.field("prompt_key", pa.string()),
    pa.field("prompt", pa.string()),
    pa.field("response", pa.string()),
    pa.field("score", pa.float64()),
    *(pa.field(name, pa.string()) for name in TEXTS),
    *(pa.field(name, pa.int64()) for name in INTEGERS),
    pa.field("truncated", pa.bool_()),
    *(pa.field(name, pa.list_(kind)) for name, kind in ARRAYS.items()),
    *(pa.field(name, pa.string()) for name in JSONS),
    pa.field("more", pa.string()),
)
# Values that repeat within a row group; the others only cost time to look up.
REPEATED = ["prompt", "prompt_key", "group", "trajectory", "ground_truth", "data_source", "finish_reason"]


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """The run's own columns of one file, in order. `parts` are names of rewards, also `num.` columns."""

    parts: tuple[str, ...] = ()
    nums: tuple[str, ...] = ()
    strs: tuple[str, ...] = ()
    jsons: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Record]) -> BodyLayout:
        """What the records need, at most `MOST_KEYS` of them."""
        parts = list(dict.fromkeys(key for record in records for key in record.rewards if is_column(key)))
        kinds = dict.fromkeys((key, type(value)) for record in records for key, value in record.extras.items())
        homes: dict[str, dict[str, None]] = {"num": {}, "str": {}, "json": {}, "": {}}
        for key, kind in kinds:
            if is_column(key):
                homes[HOMES[kind]][key] = None
        nums = [name for name in homes["num"] if name not in parts]
        most = MOST_KEYS // 4
        return cls(tuple(parts)[:most], tuple(nums)[:most], tuple(homes["str"])[:most], tuple(homes["json"])[:most])

    def schema(self) -> pa.Schema:
        own = [
            *(pa.field(f"num.{name}", pa.float64(), metadata=REWARD_METADATA) for name in self.parts),
            *(pa.field(f"num.{name}", pa.float64()) for name in self.nums),
            *(pa.field(f"str.{name}", pa.string()) for name in self.strs),
            *(pa.field(f"json.{name}", pa.string()) for name in self.jsons),
        ]
        return pa.schema([*FIXED_FIELDS, *own], metadata={"rolloutdeck": str(BODY_SCHEMA_VERSION)})

    def table(self, records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> pa.Table:
        """One row per record, in order; what has no column goes into `more`."""
        fixed = {name: list(map(attrgetter(name), records)) for name in Record.__slots__}
        made = {
            "id": pa.array(ids, pa.string()),
            "prompt_key": pa.array(keys, pa.string()),
            "score": pa.array(fixed["score"], pa.float64()),
            "truncated": pa.array(fixed["truncated"], pa.bool_()),
            "more": jsons(self.left_over(records)),
        }
        made |= {name: texts(fixed[name]) for name in ("prompt", *TEXTS)}
        made["response"] = texts([None if record.textless else record.response for record in records])
        made |= {name: pa.array(fixed[name], pa.int64()) for name in INTEGERS}
        made |= {name: arrays(fixed[name], kind) for name, kind in ARRAYS.items()}
        made |= {name: jsons(fixed[name]) for name in JSONS}
        columns = [made[field.name] for field in FIXED_FIELDS] + self.own(fixed["rewards"], fixed["extras"])
        return pa.Table.from_arrays(columns, schema=self.schema())

    def own(self, rewards: list[dict[str, Any]], extras: list[dict[str, Any]]) -> list[pa.Array]:
        """The columns behind the fixed ones."""
        return [
            *(pa.array([row.get(name) for row in rewards], pa.float64()) for name in self.parts),
            *(pa.array([as_number(row.get(name)) for row in extras], pa.float64()) for name in self.nums),
            *(texts([as_text(row.get(name)) for row in extras]) for name in self.strs),
            *(jsons([as_nested(row.get(name)) for row in extras]) for name in self.jsons),
        ]

    def left_over(self, records: Sequence[Record]) -> list[dict[str, Any] | None]:
        """Per record what no column takes: {"rewards": {…}, "extras": {…}}, or None."""
        parts = frozenset(self.parts)
        homes = {(key, kind) for kind, home in HOMES.items() for key in self.columns(home)}
        named = {key for record in records for key in record.rewards}
        kinds = {(key, type(value)) for record in records for key, value in record.extras.items()}
        whole = [key for key, kind in kinds if kind is int]
        if named <= parts and kinds <= homes and not any(is_huge(r.extras.get(key)) for key in whole for r in records):
            return [None] * len(records)
        found: list[dict[str, Any] | None] = []
        for record in records:
            rewards = {key: value for key, value in record.rewards.items() if key not in parts}
            extras = {
                key: value
                for key, value in record.extras.items()
                if value is not None and ((key, type(value)) not in homes or is_huge(value))
            }
            found.append({"rewards": rewards, "extras": extras} if rewards or extras else None)
        return found

    def columns(self, home: str) -> tuple[str, ...]:
        return {"num": self.nums, "str": self.strs, "json": self.jsons}.get(home, ())


def is_column(name: str) -> bool:
    return len(name) <= MOST_KEY_CHARS and name.isprintable()


def is_huge(value: Any) -> bool:
    """True for an integer that a double would round."""
    return type(value) is int and not -(2**53) <= value <= 2**53


def as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not is_huge(value) else None


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_nested(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) else None


def texts(values: list[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([value and replace_surrogates(value) for value in values], pa.string())


def replace_surrogates(text: str) -> str:
    """The text with half surrogates as U+FFFD and split pairs joined."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def jsons(values: list[Any]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.string())
    return texts([None if value is None else to_json(value) for value in values])


def arrays(values: list[Any], kind: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.list_(kind))
    return pa.array(values, pa.list_(kind))


class BodyWriter:
    """Writes tables of one layout into a file, in row groups that can be read one at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        repeated = [*REPEATED, *(name for name in schema.names if name.startswith("str."))]
        self.file = pq.ParquetWriter(
            path, schema, compression="zstd", compression_level=1, use_dictionary=repeated, write_statistics=False
        )
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        for start, end in find_row_group_bounds(table):
            self.file.write_table(table.slice(start, end - start), row_group_size=end - start)
        self.rows += table.num_rows

    def close(self) -> None:
        self.file.close()


def find_row_group_bounds(table: pa.Table) -> Iterator[tuple[int, int]]:
    """(first, end) of the row groups: up to 128 rows, ending when their text passes 4 MB; a long row stands alone."""
    start = total = 0
    for row, size in enumerate(row_bytes(table)):
        if row > start and size >= LONG_ROW_BYTES:
            yield start, row
            start, total = row, 0
        total += size
        if size >= LONG_ROW_BYTES or total >= GROUP_BYTES or row - start + 1 == GROUP_ROWS:
            yield start, row + 1
            start, total = row + 1, 0
    if start < table.num_rows:
        yield start, table.num_rows


def row_bytes(table: pa.Table) -> list[int]:
    """Bytes of the long columns of each row; token arrays count four per token."""
    import pyarrow.compute as pc

    total = pc.add(
        pc.fill_null(pc.binary_length(table["prompt"]), 0), pc.fill_null(pc.binary_length(table["response"]), 0)
    )
    for name in ("messages", "tools", "segments"):
        if table[name].null_count < table.num_rows:
            total = pc.add(total, pc.fill_null(pc.binary_length(table[name]), 0))
    for name in ("prompt_ids", "response_ids", "logprobs"):
        if table[name].null_count < table.num_rows:
            total = pc.add(total, pc.multiply(4, pc.fill_null(pc.list_value_length(table[name]), 0)))
    return list(total.to_pylist())


# What the slim rows are made of; the other columns need not be read for that.
INDEX_ROW_COLUMNS = [
    "id", "prompt_key", "prompt", "response", "score", *TEXTS, *INTEGERS, "truncated", "response_ids", "advantages",
]  # fmt: skip


def build_records(table: pa.Table) -> list[Record]:
    """The rows of a table as records again; columns that were not read stay empty."""
    names = table.schema.names
    plain = {name: table[name].to_pylist() for name in names}
    made = [
        Record(prompt=prompt, response=response or "", textless=response is None)
        for prompt, response in zip(plain["prompt"], plain["response"], strict=True)
    ]
    for name in ("score", *TEXTS, *INTEGERS, "truncated", *ARRAYS):
        if name in plain:
            for record, value in zip(made, plain[name], strict=True):
                setattr(record, name, value)
    for name in JSONS:
        for record, value in zip(made, plain.get(name, ()), strict=False):
            setattr(record, name, loads(value))
    for field in table.schema:
        own(made, field, plain[field.name])
    for record, value in zip(made, plain.get("more", ()), strict=False):
        if value is not None:
            more = loads(value)
            record.rewards.update(more["rewards"])
            record.extras.update(more["extras"])
    return made


def own(made: list[Record], field: pa.Field, values: list[Any]) -> None:
    """Puts a column of the run's own where it came from."""
    kind, _, key = field.name.partition(".")
    if kind not in ("num", "str", "json") or not key:
        return
    reward = bool(field.metadata and field.metadata.get(b"part") == b"reward")
    for record, value in zip(made, values, strict=True):
        if value is None:
            continue
        if reward:
            record.rewards[key] = value
        elif kind == "num":
            record.extras[key] = int(value) if value.is_integer() else value
        else:
            record.extras[key] = value if kind == "str" else loads(value)


def loads(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)
