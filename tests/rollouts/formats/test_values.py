"""Real dumps of which any one value became another: records or a sentence, and never anything else."""

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

LIKE_ANOTHER = {"verl_jsonl", "step1", "before_execute", "effective"}  # folders; verl's has test_formats.py
FILES = [path for path in list_dumps() if path.suffix in (".json", ".jsonl") and not LIKE_ANOTHER & set(path.parts)]
OTHERS = (
    None, True, -1, 2**70, -(2**60), 0.5, float("nan"), "", "\ud83d", [], [None], [[True]], ["a", 1], {}, {"a": [1]},
    [{"role": "user"}], [{"role": 5}],
)  # fmt: skip
Place = tuple[str | int, ...]


def list_paths(value: Any, here: Place = ()) -> Iterator[Place]:
    """Every key of a value, and of lists the first entry."""
    if here:
        yield here
    inner: Any = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from list_paths(entry, (*here, key))


def changed(value: Any, place: Place, other: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = other
    return value


def parsed(path: Path) -> Any:
    """A list of the first entries, or of the first lines."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()[:2]]
    value = json.loads(path.read_bytes())
    return value[:2] if isinstance(value, list) else value


def write_pickle(path: Path, value: Any) -> bytes:
    return b"\n".join(json.dumps(item).encode() for item in (value if path.suffix == ".jsonl" else [value]))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DUMPS)))
def test_any_value_of_a_real_dump_may_be_another(path: Path) -> None:
    form, value = select_format(path.name, path.read_bytes()[:HEAD_BYTES]), parsed(path)
    for position in list_paths(value):
        records = []
        for other in OTHERS:
            body = write_pickle(path, changed(value, position, other))
            try:
                items = list(form.read(io.BytesIO(body), DumpContext(path.name)))
            except UnreadableDumpError:
                continue
            assert all(isinstance(item, (Record, MetricPoint, LineProblem, SkippedRow)) for item in items)
            records += [item for item in items if isinstance(item, Record)]
        names = [""] * len(records)
        assert not records or BodyLayout.from_records(records).table(records, names, names)
