"""Real dumps with one value replaced give records or an error message, and nothing else."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import HEAD_BYTES, DumpContext, select_format
from rollouts.samples.parquet import BodyLayout
from rollouts.samples.record import LineProblem, MetricPoint, Record, SkippedRow
from tests.rollouts.real_dumps import DUMPS, list_dumps

DUPLICATE_FOLDERS = {
    "verl_jsonl",
    "step1",
    "before_execute",
    "effective",
}  # folders; verl_jsonl is tested in test_formats.py
FILES = [
    path for path in list_dumps() if path.suffix in (".json", ".jsonl") and not DUPLICATE_FOLDERS & set(path.parts)
]
REPLACEMENTS = (
    None, True, -1, 2**70, -(2**60), 0.5, float("nan"), "", "\ud83d", [], [None], [[True]], ["a", 1], {}, {"a": [1]},
    [{"role": "user"}], [{"role": 5}],
)  # fmt: skip
KeyPath = tuple[str | int, ...]


def list_paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields the path of every key of a value. Of lists only the first entry is used."""
    if path:
        yield path
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from list_paths(entry, (*path, key))


def replace_value(value: Any, path: KeyPath, replacement: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = replacement
    return value


def load_values(path: Path) -> Any:
    """A list of the first entries, or of the first lines."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()[:2]]
    value = json.loads(path.read_bytes())
    return value[:2] if isinstance(value, list) else value


def encode_values(path: Path, value: Any) -> bytes:
    return b"\n".join(json.dumps(item).encode() for item in (value if path.suffix == ".jsonl" else [value]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DUMPS)))
def test_a_real_dump_with_any_value_replaced_is_read_or_refused(path: Path) -> None:
    form, value = select_format(path.name, path.read_bytes()[:HEAD_BYTES]), load_values(path)
    for key_path in list_paths(value):
        records = []
        for replacement in REPLACEMENTS:
            body = encode_values(path, replace_value(value, key_path, replacement))
            try:
                items = list(form.read(io.BytesIO(body), DumpContext(path.name)))
            except UnreadableDumpError:
                continue
            assert all(isinstance(item, (Record, MetricPoint, LineProblem, SkippedRow)) for item in items)
            records += [item for item in items if isinstance(item, Record)]
        names = [""] * len(records)
        assert not records or BodyLayout.from_records(records).table(records, names, names)
