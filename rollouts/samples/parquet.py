"""Writes and reads sample bodies as Parquet (schema version 1).

These columns always exist, in this order:

    id, prompt_key                     the sample id and the prompt key, see identity.py
    prompt, response                   text; lone surrogates become U+FFFD, because Arrow cannot store them (the raw
                                       dump can); the response is null if only its tokens were recorded
    score double; group, trajectory, ground_truth, data_source, finish_reason string; index, turn, policy_version
    int64; truncated bool; prompt_ids, response_ids list<int32>; response_mask list<int8>; logprobs, ref_logprobs,
    advantages list<float>
    messages, timing, metrics, segments, tools, more     JSON text

The keys that the run adds follow: `num.<key>` double (also booleans), `str.<key>` string, `json.<key>` for lists and
objects. A `num.` column with the metadata part=reward is a reward part. A key that first appears in a later batch of a
dump, or exceeds the limit of columns, is in `more`. A row group ends at 128 rows or 4 MB of text. A row of 1 MB or more
has its own row group, so that it is read alone. Compression is zstd level 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.samples.record import Record
from rollouts.samples.values import parse_json, replace_surrogates, to_stored_json

BODY_SCHEMA_VERSION = 1
GROUP_ROWS = 128
GROUP_BYTES = 4 << 20
LONG_ROW_BYTES = 1 << 20
MAX_WHOLE_NUMBER = 2**53  # a double rounds larger integers
MAX_KEYS = 300
MAX_KEY_CHARS = 200

TEXTS = ("group", "trajectory", "ground_truth", "data_source", "finish_reason")
INTEGERS = ("index", "turn", "policy_version")
ARRAYS = {
    "prompt_ids": pa.int32(), "response_ids": pa.int32(), "response_mask": pa.int8(),
    "logprobs": pa.float32(), "ref_logprobs": pa.float32(), "advantages": pa.float32(),
}  # fmt: skip
BODY_JSON_COLUMNS = ("messages", "timing", "metrics", "segments", "tools")
REWARD_METADATA = {b"part": b"reward"}
# The prefix of the column that stores a value of this type: `num` (also booleans), `str` or `json`.
COLUMN_PREFIXES: dict[type, str] = {
    float: "num", int: "num", bool: "num", str: "str", dict: "json", list: "json", type(None): "",
}  # fmt: skip


def is_json_column(name: str) -> bool:
    """Whether a column of a body has JSON: a fixed one, or one of an extra value."""
    return name in BODY_JSON_COLUMNS or name.startswith("json.")


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
    *(pa.field(name, pa.string()) for name in BODY_JSON_COLUMNS),
    pa.field("more", pa.string()),
)
# Columns with values that repeat within a row group. A dictionary for the others only costs time.
REPEATED = ["prompt", "prompt_key", "group", "trajectory", "ground_truth", "data_source", "finish_reason"]


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """The columns of one file that the run adds, in order. `reward_names` are also `num.` columns."""

    reward_names: tuple[str, ...] = ()
    number_names: tuple[str, ...] = ()
    text_names: tuple[str, ...] = ()
    json_names: tuple[str, ...] = ()

    @classmethod
    def from_records(cls, records: Sequence[Record]) -> BodyLayout:
        """Returns the layout for the keys of these records, at most `MAX_KEYS` keys."""
        reward_names = list(dict.fromkeys(key for record in records for key in record.rewards if is_column(key)))
        kinds = dict.fromkeys((key, type(value)) for record in records for key, value in record.extras.items())
        prefixes: dict[str, dict[str, None]] = {"num": {}, "str": {}, "json": {}, "": {}}
        for key, kind in kinds:
            if is_column(key):
                prefixes[COLUMN_PREFIXES[kind]][key] = None
        numbers = [name for name in prefixes["num"] if name not in reward_names]
        names = (reward_names, numbers, prefixes["str"], prefixes["json"])
        return cls(*(tuple(group)[: MAX_KEYS // 4] for group in names))

    def schema(self) -> pa.Schema:
        run_fields = [
            *(pa.field(f"num.{name}", pa.float64(), metadata=REWARD_METADATA) for name in self.reward_names),
            *(pa.field(f"num.{name}", pa.float64()) for name in self.number_names),
            *(pa.field(f"str.{name}", pa.string()) for name in self.text_names),
            *(pa.field(f"json.{name}", pa.string()) for name in self.json_names),
        ]
        return pa.schema([*FIXED_FIELDS, *run_fields], metadata={"rolloutdeck": str(BODY_SCHEMA_VERSION)})

    def table(self, records: Sequence[Record], ids: Sequence[str], keys: Sequence[str]) -> pa.Table:
        """Returns one row per record, in order. Values without a column go into `more`."""
        fixed = {name: list(map(attrgetter(name), records)) for name in Record.__slots__}
        arrays = {
            "id": pa.array(ids, pa.string()),
            "prompt_key": pa.array(keys, pa.string()),
            "score": pa.array(fixed["score"], pa.float64()),
            "truncated": pa.array(fixed["truncated"], pa.bool_()),
            "more": build_json_array(self.collect_leftovers(records)),
        }
        arrays |= {name: build_text_array(fixed[name]) for name in ("prompt", *TEXTS)}
        arrays["response"] = build_text_array([None if record.textless else record.response for record in records])
        arrays |= {name: pa.array(fixed[name], pa.int64()) for name in INTEGERS}
        arrays |= {name: build_list_array(fixed[name], kind) for name, kind in ARRAYS.items()}
        arrays |= {name: build_json_array(fixed[name]) for name in BODY_JSON_COLUMNS}
        columns = [arrays[field.name] for field in FIXED_FIELDS]
        columns += self.build_own_columns(fixed["rewards"], fixed["extras"])
        return pa.Table.from_arrays(columns, schema=self.schema())

    def build_own_columns(self, rewards: list[dict[str, Any]], extras: list[dict[str, Any]]) -> list[pa.Array]:
        """Returns the columns after the fixed ones."""
        return [
            *(pa.array([row.get(name) for row in rewards], pa.float64()) for name in self.reward_names),
            *(pa.array([to_number(row.get(name)) for row in extras], pa.float64()) for name in self.number_names),
            *(build_text_array(select_values(extras, name, str)) for name in self.text_names),
            *(build_json_array(select_values(extras, name, dict, list)) for name in self.json_names),
        ]

    def collect_leftovers(self, records: Sequence[Record]) -> list[dict[str, Any] | None]:
        """Returns, per record, the values without a column: {"rewards": {…}, "extras": {…}}, or None."""
        reward_names = frozenset(self.reward_names)
        stored_keys = {(key, kind) for kind, prefix in COLUMN_PREFIXES.items() for key in self.columns(prefix)}
        reward_keys = {key for record in records for key in record.rewards}
        kinds = {(key, type(value)) for record in records for key, value in record.extras.items()}
        int_keys = [key for key, kind in kinds if kind is int]
        has_huge = any(is_huge(record.extras.get(key)) for key in int_keys for record in records)
        if reward_keys <= reward_names and kinds <= stored_keys and not has_huge:
            return [None] * len(records)
        leftovers: list[dict[str, Any] | None] = []
        for record in records:
            rewards = {key: value for key, value in record.rewards.items() if key not in reward_names}
            extras = {
                key: value
                for key, value in record.extras.items()
                if value is not None and ((key, type(value)) not in stored_keys or is_huge(value))
            }
            leftovers.append({"rewards": rewards, "extras": extras} if rewards or extras else None)
        return leftovers

    def columns(self, prefix: str) -> tuple[str, ...]:
        return {"num": self.number_names, "str": self.text_names, "json": self.json_names}.get(prefix, ())


def is_column(name: str) -> bool:
    return len(name) <= MAX_KEY_CHARS and name.isprintable()


def is_huge(value: Any) -> bool:
    """Returns True for an integer that a double would round."""
    return type(value) is int and abs(value) > MAX_WHOLE_NUMBER


def to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not is_huge(value) else None


def select_values(rows: list[dict[str, Any]], name: str, *types: type) -> list[Any]:
    """Returns one value per row; None if it has another type."""
    return [value if isinstance(value := row.get(name), types) else None for row in rows]


def build_text_array(values: list[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([value and replace_surrogates(value) for value in values], pa.string())


def build_json_array(values: list[Any]) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.string())
    return build_text_array([None if value is None else to_stored_json(value) for value in values])


def build_list_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if values.count(None) == len(values):
        return pa.nulls(len(values), pa.list_(kind))
    return pa.array(values, pa.list_(kind))


class BodyWriter:
    """Writes tables of one layout into a Parquet file. Its row groups can be read one at a time."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        repeated = [*REPEATED, *(name for name in schema.names if name.startswith("str."))]
        self.file = pq.ParquetWriter(
            path,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=repeated,
            write_statistics=False,
            write_page_checksum=True,  # `fsck` verifies it
        )
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        for start, end in find_row_group_bounds(table):
            self.file.write_table(table.slice(start, end - start), row_group_size=end - start)
        self.rows += table.num_rows

    def close(self) -> None:
        self.file.close()


def find_row_group_bounds(table: pa.Table) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of each row group: at most 128 rows, closed at 4 MB of text. A long row is alone."""
    start = total = 0
    for row, size in enumerate(measure_rows(table)):
        if row > start and size >= LONG_ROW_BYTES:
            yield start, row
            start, total = row, 0
        total += size
        if size >= LONG_ROW_BYTES or total >= GROUP_BYTES or row - start + 1 == GROUP_ROWS:
            yield start, row + 1
            start, total = row + 1, 0
    if start < table.num_rows:
        yield start, table.num_rows


def measure_rows(table: pa.Table) -> list[int]:
    """Returns the bytes of the long columns of each row. Token arrays count four bytes per token."""
    import pyarrow.compute as pc

    total = pc.fill_null(pc.binary_length(table["prompt"]), 0)
    others = [name for name in table.schema.names if name == "more" or name.startswith(("str.", "json."))]
    for name in ("response", "messages", "tools", "segments", *others):
        if table[name].null_count < table.num_rows:
            total = pc.add(total, pc.fill_null(pc.binary_length(table[name]), 0))
    for name in ("prompt_ids", "response_ids", "logprobs"):
        if table[name].null_count < table.num_rows:
            total = pc.add(total, pc.multiply(4, pc.fill_null(pc.list_value_length(table[name]), 0)))
    return list(total.to_pylist())


# The columns that index rows are built from, if the body has them. The others are not read for that.
INDEX_ROW_COLUMNS = [
    "id", "prompt_key", "prompt", "response", "score", *TEXTS, *INTEGERS, "truncated", "response_ids", "advantages",
    "messages", "timing", "metrics", "more", "num.acc", "num.filtered", "num.response_length", "num.trainer_version",
    "num.staleness", "num.duration", "str.guidance",
]  # fmt: skip


def list_reward_columns(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns with a reward part."""
    return [field.name for field in schema if is_reward_column(field)]


def is_reward_column(field: pa.Field) -> bool:
    return bool(field.metadata and field.metadata.get(b"part") == b"reward")


def build_records(table: pa.Table) -> list[Record]:
    """Converts the rows of a table to records. Columns that were not read stay empty."""
    names = table.schema.names
    columns = {name: table[name].to_pylist() for name in names}
    records = [
        Record(prompt, response or "", textless=response is None)
        for prompt, response in zip(columns["prompt"], columns["response"], strict=True)
    ]
    for name in ("score", *TEXTS, *INTEGERS, "truncated", *ARRAYS):
        if name in columns:
            for record, value in zip(records, columns[name], strict=True):
                setattr(record, name, value)
    for name in BODY_JSON_COLUMNS:
        for record, value in zip(records, columns.get(name, ()), strict=False):
            setattr(record, name, None if value is None else parse_json(value))
    for field in table.schema:
        set_own_values(records, field, columns[field.name])
    for record, value in zip(records, columns.get("more", ()), strict=False):
        if value is not None:
            more = parse_json(value)
            record.rewards.update(more["rewards"])
            record.extras.update(more["extras"])
    return records


def set_own_values(records: list[Record], field: pa.Field, values: list[Any]) -> None:
    """Sets the values of a column that the run added as rewards or extras of the records."""
    kind, _, key = field.name.partition(".")
    if kind not in ("num", "str", "json") or not key:
        return
    is_reward = is_reward_column(field)
    for record, value in zip(records, values, strict=True):
        if value is None:
            continue
        if is_reward:
            record.rewards[key] = value
        elif kind == "num":
            record.extras[key] = int(value) if value.is_integer() and abs(value) <= MAX_WHOLE_NUMBER else value
        else:
            record.extras[key] = value if kind == "str" else parse_json(value)
