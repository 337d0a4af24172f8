"""Writes the `.expected.json` beside each dump that `tests.rollouts.formats.independent` does not read:
python -m tests.rollouts.golden. Look at the difference."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()

from rollouts.formats import DumpContext, select_format
from rollouts.samples.record import LineProblem, MetricPoint, Record, SkippedRow
from tests.rollouts.formats.independent import has_reader

DUMPS = Path(__file__).parents[1] / "data"
REAL = (
    "verl_jsonl/**/*.jsonl", "trl/**/*.parquet", "slime/**/*.pt", "roll/**/*.jsonl", "roll/**/*.pkl",
    "cure/**/*data*.json", "cure/**/outputs-*.json", "cure/**/results-*.txt", "nemo_rl/**/*.jsonl",
    "verifiers/**/*.jsonl", "rllm/**/episode_*.json", "table/**/*.csv", "table/**/*.jsonl", "table/**/*.parquet",
    "table/**/*.table.json", "others/**/*.json", "others/**/*.jsonl", "others/**/*.parquet",
    "others/**/*.eval", "others/**/*.arrow", "metrics/**/*.json", "metrics/**/*.jsonl",
    "tinker/**/*_logtree.json", "tinker/**/*.jsonl", "skyrl/**/*.pkl", "skyrl/**/[!a]*.jsonl",
    "nemo_gym/**/*_collection.jsonl", "miles/**/*.pt",
)  # fmt: skip
WHOLE = (0, 1, -1)  # records that are kept whole


def files() -> list[Path]:
    matches = sorted(path for pattern in REAL for path in DUMPS.glob(pattern))
    return [path for path in matches if not path.name.endswith(".expected.json")]


def snapshots() -> list[Path]:
    return [path for path in files() if not has_reader(path)]


def expected(path: Path) -> Path:
    return path.with_name(path.name + ".expected.json")


def reading(path: Path) -> dict[str, Any]:
    """Counts of a real dump and a few of its records, as its format module reads it."""
    body = path.read_bytes()
    step = int(path.stem) if path.stem.isdigit() else None
    is_eval = path.parent.name == "val" or path.name.startswith("eval_")
    result = DumpContext(path.name, "eval" if is_eval else "train", step, path=path)
    form = select_format(path.name, body[:65536])
    items = list(form.read(io.BytesIO(body), result))
    things = [item for item in items if isinstance(item, (Record, MetricPoint))]
    groups = Counter(str(item.group or item.prompt) for item in things if isinstance(item, Record))
    return {
        "format": form.name,
        "count": len(things),
        "problems": sum(isinstance(item, LineProblem) for item in items),
        "left_out": sum(isinstance(item, SkippedRow) for item in items),
        "groups": len(groups),
        "group_sizes": sorted(set(groups.values())),
        "scores": [item.score for item in things if isinstance(item, Record)],
        "things": [filled(things[position]) for position in WHOLE if position < len(things)],
    }


def filled(thing: Record | MetricPoint) -> dict[str, Any]:
    """Without what says nothing; `textless` says something where it is true."""
    stored = {key: short(value) for key, value in asdict(thing).items() if value not in (None, {}, [])}
    return {key: value for key, value in stored.items() if key != "textless" or value}


def short(value: Any) -> Any:
    """A long list of numbers by its ends and how many there are between them."""
    if not isinstance(value, list) or len(value) <= 16 or not all(isinstance(item, (int, float)) for item in value):
        return value
    return [*value[:4], f"… {len(value) - 8} …", *value[-4:]]


if __name__ == "__main__":
    for path in snapshots():
        expected(path).write_text(json.dumps(reading(path), ensure_ascii=False, indent=1) + "\n")
