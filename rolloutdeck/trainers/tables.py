"""Tables of generations that no trainer's module knows: CSV, JSON lines, Parquet, Arrow as `save_to_disk` of Hugging
Face's datasets writes it, and tables of a tracker's log.

They are taken by the names of their columns (`rolloutdeck.protocol.columns`), or because somebody said `--map`. A step
may stand in the file's name or a folder's (`step_12`, `12.csv`), else in their rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.protocol import (
    COMMON_COLUMN_NAMES,
    find_row_keys,
    find_samples_column,
    has_generation_columns,
    parse_logged_columns,
)
from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles

_NAMED = re.compile(r"(?:\A|[^a-z])(?:step|iter|iteration|checkpoint|ckpt)[_-]?(\d{1,18})(?![0-9])", re.IGNORECASE)
_UNDERLINED = bytes.maketrans(b" -", b"__")
_EVAL = re.compile(r"(?:\A|[^a-z])(?:val|valid|validation|evals?|evaluation|test|dev)(?:[^a-z]|\Z)", re.IGNORECASE)
_SHARD = re.compile(r"-(\d{5,6}-of-\d{5,6})\.")  # `data-00001-of-00003.arrow`, as Hugging Face's datasets name them
_OF_ITSELF = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")  # its columns, too
_BARE = re.compile(r"\d{1,7}\Z")  # longer ones are dates and times


def _step_of(path: PurePath) -> int | None:
    stem = path.name.partition(".")[0]
    if _BARE.match(stem):
        return int(stem)
    found = (parse_step_name(name) for name in (stem, path.parent.name))
    return next((step for step in found if step is not None), None)


def parse_step_name(name: str) -> int | None:
    """The step that a name of a file or folder says: `step_12`, `checkpoint-400`."""
    found = _NAMED.search(name)
    return int(found.group(1)) if found else None


def _shard_of(path: PurePath) -> str:
    """Equal rows of two shards are two samples, as they are in one file."""
    return found.group(1) if (found := _SHARD.search(path.name)) else ""


def _split_of(path: PurePath) -> str:
    """A file that is called after an evaluation is one, whatever its folder is called."""
    return "eval" if _EVAL.search(path.name.partition(".")[0]) else ""


def _is_rows(name: str, head: FileHead) -> bool:
    """A row of theirs, behind one of settings too; of a first line that is longer than what is seen, its keys."""
    if head.rows:
        return any(has_generation_columns(row) or find_samples_column(row) for row in head.rows)
    return head.start.lstrip().startswith(b"{") and any(map(has_generation_columns, find_row_keys(head.start)))


def _is_json(name: str, head: FileHead) -> bool:
    """One value, or lines all the same."""
    if name in _OF_ITSELF:
        return False
    return (
        has_generation_columns(parse_logged_columns(head.start))
        or _is_rows(name, head)
        or any(map(has_generation_columns, find_row_keys(head.start)))
    )


def _is_csv(name: str, head: FileHead) -> bool:
    return has_generation_columns(_csv_names(head))


def _csv_names(head: FileHead) -> list[str]:
    first = head.start.partition(b"\n")[0].decode("utf-8-sig", "replace")
    separator = max(",;\t", key=first.count)
    return next(csv.reader([first], delimiter=separator), [])


def read_table_columns(path: PurePath, head: FileHead) -> list[str]:
    """The columns of a table that its first line names; empty for every other file."""
    if path.suffix in (".csv", ".tsv"):
        return _csv_names(head)
    return list(head.rows[0]) if path.suffix == ".jsonl" and head.rows else []


def _is_parquet(name: str, head: FileHead) -> bool:
    """Its footer names the columns, each after its length."""
    known = {word for words in COMMON_COLUMN_NAMES.values() for word in words}
    start = head.start[4:].lower().translate(_UNDERLINED)  # lengths are smaller than any letter, and stay
    return has_generation_columns([word for word in sorted(known) if bytes([len(word)]) + word.encode() in start])


def _is_arrow(name: str, head: FileHead) -> bool:
    """Its schema, which comes first, names the columns, each behind its length."""
    known = {word for words in COMMON_COLUMN_NAMES.values() for word in words}
    start = head.start[8:].lower().translate(_UNDERLINED)
    return has_generation_columns(
        [word for word in sorted(known) if len(word).to_bytes(4, "little") + word.encode() + b"\0" in start]
    )


def _is_batch(name: str, head: FileHead) -> bool:
    """What a batch of OpenAI's API answered; the file of its requests has no `response`."""
    if head.rows:
        return {"custom_id", "response", "error"} <= head.rows[0].keys()
    return b'"custom_id"' in head.start[:2000] and b'"status_code"' in head.start


def _is_logged(name: str, head: FileHead) -> bool:
    if names := parse_logged_columns(head.start):
        return has_generation_columns(names)
    return b'"columns"' in head.start and b'"data"' in head.start


_BATCH = FileKind(
    "openai-batch", "answers of a batch", "*.jsonl", "whole", _is_batch, step=_step_of, stepless=True, split=_split_of
)
KINDS = (_BATCH, *(
    FileKind("table", "a table of samples", pattern, "whole", recognise, step=_step_of, stepless=True, guessed=True,
             split=_split_of, producer=_shard_of)
    for pattern, recognise in (
        ("*.csv", _is_csv), ("*.tsv", _is_csv), ("*.jsonl", _is_rows), ("*.parquet", _is_parquet),
        ("*.arrow", _is_arrow), ("*.table.json", _is_logged), ("*.json", _is_json),
    )
))  # fmt: skip


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    return "train", "a table does not say it either"


FILES = TrainerFiles(
    name="tables",
    kinds=KINDS,
    guess_split=guess_split,
    others=dict.fromkeys(_OF_ITSELF, "what a data set says of itself"),
)
