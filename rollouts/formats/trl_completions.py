"""TRL's completions, `completions_{step:05d}.parquet`: what GRPOTrainer writes at each log with `log_completions`.

Columns, in this order: step, prompt, completion, a double per reward function (NaN if it returned None), the values
of `log_extra` (by name), advantage. Until 1.14 prompt and completion are text; since 1.15 they are lists of messages
if the data set is conversational.

- The file has no weights of the reward functions, and a number from `log_extra` looks like a reward. The score is the
  sum of the doubles, as with the default weights of TRL, if the sum is consistent with the advantages: of two
  responses to a prompt, the one with the higher score has no smaller advantage. Else there is no score.
- An eval of the same step overwrites the file, which then has its rows, or both; no column tells which. So all versions
  of a file count (`formats.ADDITIVE_FORMATS`), and all have one split.
- With `steps_per_generation` or `num_iterations` above 1, the same rows are in the files of several steps. They are
  samples of each step, because the trainer learned from them at each.

Source: `GRPOTrainer.log` of TRL 1.16.0 and 1.9.2.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import (
    JsonObject,
    chat,
    convert_rows,
    open_parquet,
    provide_local_file,
    read_parquet_rows,
    to_jsonable,
)
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "trl-completions"

FILE = re.compile(r"(?:.*/)?completions_\d+\.parquet\Z", re.DOTALL)
KNOWN_COLUMNS = ("step", "prompt", "completion", "advantage")
TOLERANCE = 1e-6  # advantages this close are equal: TRL computes them in float32


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(b"PAR1") and bool(FILE.match(filename))


def read(stream: BinaryIO, context: DumpContext) -> Iterator[Record | LineProblem]:
    with provide_local_file(stream, context) as path, open_parquet(path) as file:
        schema = file.schema_arrow
        names = set(schema.names)
        if not {"prompt", "completion"} <= names or len(names) != len(schema):
            raise UnreadableDumpError("The Parquet file has no columns `prompt` and `completion`.")
        if not file.metadata.num_rows:
            raise UnreadableDumpError("The Parquet file has no rows.")
        parts = [field.name for field in schema if pa.types.is_floating(field.type) and field.name not in KNOWN_COLUMNS]
        scored = bool(parts) and scores_match_advantages(file, parts)
        rows = enumerate(read_parquet_rows(file), 1)
        yield from convert_rows(rows, lambda row: build_record(row, context, parts, scored))


def build_record(row: JsonObject, context: DumpContext, parts: Sequence[str], scored: bool) -> Record:
    """Raises ValueError if prompt or completion is neither text nor messages."""
    record = Record(*chat.parse_prompt_response(remove_null_keys(row["prompt"]), remove_null_keys(row["completion"])))
    record.rewards = {part: to_float(row[part]) for part in parts}
    record.score = sum_rewards(record.rewards) if scored else None
    advantage = to_float(row.get("advantage"))
    record.advantages = None if advantage is None else [advantage]
    if row.get("step") != context.step:
        record.extras["step"] = to_integer(row.get("step"))
    for key, value in row.items():
        if key in parts or key in KNOWN_COLUMNS or value is None:
            continue
        if key == "ground_truth":
            record.ground_truth = to_text(to_jsonable(value))
        else:
            record.extras[key] = to_jsonable(value)
    return record


def remove_null_keys(value: Any) -> Any:
    """Removes the null keys that Parquet adds to a message, or to the arguments of a tool call, because another message
    or call has them."""
    if not isinstance(value, list):
        return to_jsonable(value)
    if not all(isinstance(turn, dict) for turn in value):
        return value
    turns = [{key: inner for key, inner in turn.items() if inner is not None} for turn in value]
    return to_jsonable(
        [turn | {"tool_calls": remove_nulls(turn["tool_calls"])} if "tool_calls" in turn else turn for turn in turns]
    )


def remove_nulls(value: Any) -> Any:
    """Removes null keys at any depth. Items of lists remain."""
    if isinstance(value, dict):
        return {key: remove_nulls(inner) for key, inner in value.items() if inner is not None}
    return list(map(remove_nulls, value)) if isinstance(value, list) else value


def sum_rewards(rewards: dict[str, float | None]) -> float | None:
    """Returns the sum of the rewards as TRL computes it; None if no function gave a number."""
    known = [value for value in rewards.values() if value is not None]
    return sum(known) if known else None


def scores_match_advantages(file: pq.ParquetFile, parts: Sequence[str]) -> bool:
    """Returns whether the order of the advantages is consistent with the sum of the doubles."""
    if "advantage" not in file.schema_arrow.names:
        return True
    rows = read_parquet_rows(file, ["prompt", "advantage", *parts])
    return has_consistent_advantages(
        (repr(row["prompt"]), sum_rewards({part: to_float(row[part]) for part in parts}), to_float(row["advantage"]))
        for row in rows
    )


def has_consistent_advantages(rows: Iterable[tuple[str, float | None, float | None]]) -> bool:
    """Returns whether no higher score of (prompt, score, advantage) rows of a prompt has a smaller advantage."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for prompt, score, advantage in rows:
        if score is not None and advantage is not None:
            groups.setdefault(prompt, []).append((score, advantage))
    return all(is_ordered(sorted(group)) for group in groups.values())


def is_ordered(group: Sequence[tuple[float, float]]) -> bool:
    """Returns whether the advantages of pairs sorted by score never fall, and differ where the scores differ."""
    for (less, below), (more, above) in pairwise(group):
        if above < below - TOLERANCE or (more - less > TOLERANCE and abs(above - below) <= TOLERANCE):
            return False
        if more - less <= TOLERANCE and abs(above - below) > max(TOLERANCE, 1e-3 * abs(above)):
            return False
    return True
