"""TRL's completions, `completions_{step:05d}.parquet`: what GRPOTrainer writes at each log with `log_completions`.

Columns, in this order: step, prompt, completion, a double per reward function (NaN where it gave None), what
`log_extra` was given (by name), advantage. Until 1.14 prompt and completion are text, since 1.15 lists of messages
where the data set is conversational.

- The weights of the reward functions are not in it, and a number that `log_extra` was given looks like one of them. The
  score is the sum of the doubles, as with TRL's default weights, in a file whose advantages it can explain: of two
  responses to a prompt the one with more has no smaller advantage. Else there is none.
- An eval of the same step overwrites the file, which then holds its rows, or both; no column tells which. So the
  versions of a file add up instead of taking each other's place (`formats.ADDING`), and all are of one split.
- With `steps_per_generation` or `num_iterations` above 1 the same rows stand in the files of several steps. They are
  samples of each: the trainer learned from them at each.

Source: `GRPOTrainer.log` of TRL 1.16.0 and 1.9.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from rollouts.errors import UnreadableDumpError
from rollouts.formats.base import DumpContext
from rollouts.formats.readers import chat
from rollouts.formats.readers.parquet import open_parquet, read_parquet_rows
from rollouts.formats.readers.seekable import provide_local_file
from rollouts.formats.readers.values import to_jsonable
from rollouts.samples import LineProblem, Record, to_float, to_integer, to_text

name = "trl-completions"

MAGIC = b"PAR1"
FILE = re.compile(r"(?:.*/)?completions_\d+\.parquet\Z", re.DOTALL)
KNOWN = ("step", "prompt", "completion", "advantage")
SAME = 1e-6  # advantages this near are equal: TRL counts them in float32

Row = dict[str, Any]


def sniff(filename: str, head: bytes) -> bool:
    return head.startswith(MAGIC) and bool(FILE.match(filename))


def read(stream: BinaryIO, told: DumpContext) -> Iterator[Record | LineProblem]:
    """Records in the order of the rows. Raises UnreadableDump when it is no Parquet file of completions."""
    with provide_local_file(stream, told) as path, open_parquet(path) as file:
        yield from records(file, told)


def records(file: pq.ParquetFile, told: DumpContext) -> Iterator[Record | LineProblem]:
    schema, count = file.schema_arrow, file.metadata.num_rows
    if not {"prompt", "completion"} <= set(schema.names) or len(set(schema.names)) != len(schema.names):
        raise UnreadableDumpError("The Parquet file holds no completions: it has no columns `prompt` and `completion`.")
    if not count:
        raise UnreadableDumpError("The Parquet file has no rows.")
    parts = [field.name for field in schema if pa.types.is_floating(field.type) and field.name not in KNOWN]
    scored = bool(parts) and explains(file, parts)
    for line, row in enumerate(read_parquet_rows(file), 1):
        try:
            yield record(row, told, parts, scored)
        except ValueError as error:
            yield LineProblem(line, str(error))


def record(row: Row, told: DumpContext, parts: Sequence[str], scored: bool) -> Record:
    """Raises ValueError when its prompt or completion is neither text nor messages."""
    made = Record(*chat.parse_prompt_response(spoken(row["prompt"]), spoken(row["completion"])))
    made.rewards = {part: to_float(row[part]) for part in parts}
    made.score = sum_rewards(made.rewards) if scored else None
    advantage = to_float(row.get("advantage"))
    made.advantages = None if advantage is None else [advantage]
    if row.get("step") != told.step:
        made.extras["step"] = to_integer(row.get("step"))
    for key, value in row.items():
        if key in parts or key in KNOWN or value is None:
            continue
        if key == "ground_truth":
            made.ground_truth = to_text(to_jsonable(value))
        else:
            made.extras[key] = to_jsonable(value)
    return made


def spoken(value: Any) -> Any:
    """A message list without the keys that Parquet gives a message because another one has them."""
    if not isinstance(value, list):
        return to_jsonable(value)
    kept = [{key: one for key, one in turn.items() if one is not None} for turn in value if isinstance(turn, dict)]
    return to_jsonable(kept) if len(kept) == len(value) else value


def sum_rewards(rewards: dict[str, float | None]) -> float | None:
    """What TRL sums; None where no function gave a number."""
    known = [value for value in rewards.values() if value is not None]
    return sum(known) if known else None


def explains(file: pq.ParquetFile, parts: Sequence[str]) -> bool:
    """Whether the sum of the doubles is what the advantages were made of, as far as their order tells."""
    if "advantage" not in file.schema_arrow.names:
        return True
    told = read_parquet_rows(file, ["prompt", "advantage", *parts])
    return has_consistent_advantages(
        (repr(row["prompt"]), sum_rewards({part: to_float(row[part]) for part in parts}), to_float(row["advantage"]))
        for row in told
    )


def has_consistent_advantages(told: Iterable[tuple[str, float | None, float | None]]) -> bool:
    """Whether prompt, score and advantage of each row agree: of two responses to a prompt the one with more has no
    smaller advantage."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for prompt, score, advantage in told:
        if score is not None and advantage is not None:
            groups.setdefault(prompt, []).append((score, advantage))
    return all(in_order(sorted(group)) for group in groups.values())


def in_order(group: Sequence[tuple[float, float]]) -> bool:
    """Pairs of score and advantage, by score: advantages never fall, and differ where the scores do."""
    for (less, below), (more, above) in pairwise(group):
        if above < below - SAME or (more - less > SAME and abs(above - below) <= SAME):
            return False
        if more - less <= SAME and abs(above - below) > max(SAME, 1e-3 * abs(above)):
            return False
    return True
