"""Compares every row and field of every dump with a second reader that shares no code with the product."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import UnreadableDumpError
from rollouts.formats import HEAD_BYTES, DumpContext, find_artifact_format, select_format
from rollouts.samples.record import LineProblem, MetricPoint, Record
from tests.rollouts.formats.independent import SKIP, find_reason, has_reader, read_rows

DATA = Path(__file__).parents[2] / "data"
ROOT = Path(os.environ.get("DUMPS", DATA))  # DUMPS=folder compares the dumps below another folder
FIELDS = {field.name: field.default for field in fields(Record)} | {"rewards": {}, "extras": {}}


def list_files() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*")) if path.is_file()]


def list_dumps() -> list[Path]:
    return [path for path in list_files() if has_reader(path)]


def read_with_product(path: Path) -> list[Any]:
    """Reads without the step that a sender may name, so that each record has the step of its row."""
    artifact = find_artifact_format(path.name)
    options: dict[str, Any] = {}
    kind = artifact or ("areal" if "areal" in path.parts else "")  # `import` knows AReaL by the folder
    if path.name == "aggregated_results.jsonl":  # and these metrics by the name, their step by the folder
        kind, options["step"] = "metrics", int(path.parent.name.split("_")[2])
    if artifact:
        siblings = {item.name: item for item in path.parent.iterdir()}
        shape = path.relative_to(ROOT).as_posix().partition("_N")[2]
        options |= {"facts": {"samples_per_prompt": int(shape.split("_")[0])}, "sibling_paths": siblings}
    is_eval = path.parent.name == "val" or path.name.startswith("eval_")
    name = path.relative_to(ROOT).as_posix()
    context = DumpContext(name, "eval" if is_eval else "train", path=path, **options)
    body = path.read_bytes()
    return list(select_format(name, body[:HEAD_BYTES], kind).read(io.BytesIO(body), context))


@pytest.mark.parametrize("path", list_dumps(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_row_and_field_is_that_of_the_dump(path: Path) -> None:
    items, rows = read_with_product(path), read_rows(path)
    assert rows and not [item for item in items if isinstance(item, LineProblem)]
    assert len(items) == len(rows)
    groups: list[tuple[Any, Any]] = []
    trajectories: list[tuple[Any, Any]] = []
    counts: Counter[Any] = Counter()
    differences: list[Any] = []
    for number, (item, row) in enumerate(zip(items, rows, strict=True)):
        if row is SKIP or isinstance(item, MetricPoint):
            expected: Any = SKIP if row is SKIP else (row["metrics_of"], row["values"])
            given: Any = (item.step, item.values) if isinstance(item, MetricPoint) else SKIP
            differences += [(number, expected, given)] if expected != given else []
            continue
        assert isinstance(item, Record), item
        groups.append((row["group"], item.group))
        if isinstance(row.get("trajectory"), tuple):
            trajectories.append((row["trajectory"], item.trajectory))
        if item.index is not None and "index" not in row:
            assert item.index == counts[row["group"]], number
            counts[row["group"]] += 1
        differences += compare_fields(number, item, row)
    assert not differences, f"{len(differences)} differences, the first: {differences[:5]}"
    assert are_same_labels(trajectories)
    if any(given is not None for _, given in groups):  # else equal prompts are one group
        assert are_same_labels(groups)


def test_a_file_that_is_not_compared_has_a_reason_and_is_refused() -> None:
    for path in (path for path in list_files() if not has_reader(path)):
        assert find_reason(path), path
        with pytest.raises(UnreadableDumpError):
            read_with_product(path)


def are_same_labels(pairs: list[tuple[Any, Any]]) -> bool:
    """Whether both sides group the same rows, under any labels."""
    return len(set(pairs)) == len({left for left, _ in pairs}) == len({other for _, other in pairs})


def compare_fields(number: int, record: Record, row: dict[str, Any]) -> list[Any]:
    """Returns (row, field, expected, read) of each field that differs."""
    given = {name: getattr(record, name) for name in FIELDS}
    expected = {name: row.get(name) or default for name, default in FIELDS.items()} | {
        name: row[name] for name in FIELDS if row.get(name) is not None
    }
    given["step"], expected["step"] = given["extras"].pop("step", None), row.get("step")
    if isinstance(expected["ground_truth"], (list, dict)):  # stored as JSON
        given["ground_truth"] = json.loads(given["ground_truth"])
    if isinstance(expected["trajectory"], tuple):  # any name: it is compared as a label
        given["trajectory"], expected["trajectory"] = None, None
    return [
        (number, name, expected[name], given[name])
        for name in expected
        if name not in ("group", "index") or (name == "index" and "index" in row)
        if expected[name] != given[name]
    ]
