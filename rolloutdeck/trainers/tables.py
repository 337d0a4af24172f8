"""Tables of generations without a trainer module: CSV, JSON lines, Parquet, Arrow files of Hugging Face's
`save_to_disk`, and tables of a tracker's log.

They are recognised by their column names (`rolloutdeck.protocol.columns`), or the user passed `--map`. The step is in
the name of the file or its folder (`step_12`, `12.csv`), else in the rows. Files of a data set are numbered too
(`0000.parquet`): a number alone is no step if the rows of the table have one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePath

from rolloutdeck import protocol
from rolloutdeck.protocol import find_row_keys, has_generation_columns
from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split

_STEP_NAME = re.compile(r"(?:\A|[^a-z])(?:step|iter|iteration|checkpoint|ckpt)[_-]?(\d{1,18})(?![0-9])", re.IGNORECASE)
_UNDERSCORES = bytes.maketrans(b" -", b"__")
_EVAL = re.compile(r"(?:\A|[^a-z])(?:val|valid|validation|evals?|evaluation|test|dev)(?:[^a-z]|\Z)", re.IGNORECASE)
_SHARD = re.compile(r"-(\d{5,6}-of-\d{5,6})\.")  # `data-00001-of-00003.arrow`, as Hugging Face's datasets name them
# Metadata of a data set; some have its column names.
_METADATA_FILES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_STEP_ONLY = re.compile(r"\d{1,7}\Z")  # longer ones are dates and times


def _parse_step(path: PurePath) -> int | None:
    stem = path.name.partition(".")[0]
    if _STEP_ONLY.match(stem):
        return int(stem)
    steps = (parse_step_name(name) for name in (stem, path.parent.name))
    return next((step for step in steps if step is not None), None)


def _rows_have_step(path: PurePath, head: FileHead) -> bool:
    """Whether a file is named after a number only and its rows have a step, the same in each of the first rows.

    In turns of an agent, steps differ from row to row.
    """
    if not _STEP_ONLY.match(path.name.partition(".")[0]):
        return False
    if head.rows:
        steps = {row.get("step") for row in head.rows if isinstance(row.get("step"), int)}
        return len(steps) == 1
    if path.suffix in (".csv", ".tsv"):
        return "step" in head.list_csv_columns()
    return path.suffix == ".parquet" and b"\x04step" in head.start


def parse_step_name(name: str) -> int | None:
    """Returns the step in the name of a file or folder: `step_12`, `checkpoint-400`."""
    match = _STEP_NAME.search(name)
    return int(match[1]) if match else None


def _parse_shard(path: PurePath) -> str:
    """Returns the shard: equal rows of two shards are two samples, like equal rows in one file."""
    return match[1] if (match := _SHARD.search(path.name)) else ""


def _parse_split(path: PurePath) -> str:
    """Returns `eval` if the file is named after an evaluation, whatever its folder is named."""
    return "eval" if _EVAL.search(path.name.partition(".")[0]) else ""


def _is_rows(name: str, head: FileHead) -> bool:
    """Returns whether a line is a row of generations, also after a line of settings.

    If the first line is longer than the bytes that were read, its keys decide.
    """
    if head.rows:
        return any(has_generation_columns(row) or protocol.find_samples_column(row) for row in head.rows)
    return head.start.lstrip().startswith(b"{") and any(map(has_generation_columns, find_row_keys(head.start)))


def _is_json(name: str, head: FileHead) -> bool:
    if name in _METADATA_FILES:
        return False
    return (
        has_generation_columns(protocol.parse_logged_columns(head.start))
        or _is_rows(name, head)
        or any(map(has_generation_columns, find_row_keys(head.start)))
    )


def _is_csv(name: str, head: FileHead) -> bool:
    return has_generation_columns(head.list_csv_columns())


def _is_parquet(name: str, head: FileHead) -> bool:
    return _has_length_prefixed_columns(head.start[4:], lambda length: bytes([length]))  # in the footer


def _is_arrow(name: str, head: FileHead) -> bool:
    return _has_length_prefixed_columns(head.start[8:], lambda length: length.to_bytes(4, "little"), b"\0")


def _has_length_prefixed_columns(start: bytes, encode_length: Callable[[int], bytes], end: bytes = b"") -> bool:
    """Returns whether a schema has columns of generations, each name after its length."""
    names = sorted({column for words in protocol.COMMON_COLUMN_NAMES.values() for column in words})
    start = start.lower().translate(_UNDERSCORES)  # lengths are smaller than any letter, so they do not change
    return has_generation_columns([name for name in names if encode_length(len(name)) + name.encode() + end in start])


def _is_batch(name: str, head: FileHead) -> bool:
    """Returns whether the file has answers of a batch of OpenAI's API; the file of its requests has no `response`."""
    if head.rows:
        return {"custom_id", "response", "error"} <= head.rows[0].keys()
    return b'"custom_id"' in head.start[:2000] and b'"status_code"' in head.start


def _is_logged(name: str, head: FileHead) -> bool:
    if names := protocol.parse_logged_columns(head.start):
        return has_generation_columns(names)
    return b'"columns"' in head.start and b'"data"' in head.start


def _is_never(name: str, head: FileHead) -> bool:
    """For formats that only the user can name: other kinds have the same files."""
    return False


_BATCH = FileKind(
    "openai-batch", "answers of a batch", "*.jsonl", _is_batch, step=_parse_step, stepless=True, split=_parse_split
)
_TABLES: dict[str, Callable[[str, FileHead], bool]] = {
    "*.csv": _is_csv, "*.tsv": _is_csv, "*.jsonl": _is_rows, "*.parquet": _is_parquet, "*.arrow": _is_arrow,
    "*.table.json": _is_logged, "*.json": _is_json,
}  # fmt: skip


def _build_kind(format: str, name: str, pattern: str, matches: Callable[[str, FileHead], bool]) -> FileKind:
    return FileKind(
        format, name, pattern, matches, step=_parse_step, rows_have_step=_rows_have_step, stepless=True,
        guessed=format == "table", split=_parse_split, producer=_parse_shard,
    )  # fmt: skip


KINDS = (
    _BATCH,
    *(_build_kind("table", "a table of samples", *known) for known in _TABLES.items()),
    *(_build_kind("token-table", "a table of token ids", pattern, _is_never) for pattern in _TABLES),
    _build_kind("native", "rows of log_samples", "*.jsonl", _is_never),
)
FILES = TrainerFiles(
    name="tables",
    kinds=KINDS,
    guess_split=assume_split("train", "the table does not state it"),
    others=dict.fromkeys(_METADATA_FILES, "metadata of a data set"),
)
