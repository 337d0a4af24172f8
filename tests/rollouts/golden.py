"""Writes the `.expected.json` beside each real dump: python -m tests.rollouts.golden. Look at the difference."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollouts.formats import Told, pick
from rollouts.records import LeftOut, Point, Problem, Record

DUMPS = Path(__file__).parents[1] / "data" / "verl_jsonl"
WHOLE = (0, 1, -1)  # records that are kept whole


def files() -> list[Path]:
    return sorted(DUMPS.rglob("*.jsonl"))


def expected(path: Path) -> Path:
    return path.with_name(path.name + ".expected.json")


def reading(path: Path) -> dict[str, Any]:
    """Counts of a real dump and a few of its records, as its format module reads it."""
    body = path.read_bytes()
    step = int(path.stem) if path.stem.isdigit() else None
    told = Told(path.name, "eval" if path.parent.name == "val" else "train", step)
    form = pick(path.name, body[:65536])
    items = list(form.read(io.BytesIO(body), told))
    things = [item for item in items if isinstance(item, (Record, Point))]
    groups = Counter(str(item.group or item.prompt) for item in things if isinstance(item, Record))
    return {
        "format": form.name,
        "count": len(things),
        "problems": sum(isinstance(item, Problem) for item in items),
        "left_out": sum(isinstance(item, LeftOut) for item in items),
        "groups": len(groups),
        "group_sizes": sorted(set(groups.values())),
        "scores": [item.score for item in things if isinstance(item, Record)],
        "things": [filled(things[place]) for place in WHOLE],
    }


def filled(thing: Record | Point) -> dict[str, Any]:
    """Without what says nothing; `textless` says something where it is true."""
    kept = {key: value for key, value in asdict(thing).items() if value not in (None, {}, [])}
    return {key: value for key, value in kept.items() if key != "textless" or value}


if __name__ == "__main__":
    for path in files():
        expected(path).write_text(json.dumps(reading(path), ensure_ascii=False, indent=1) + "\n")
