"""TRL: `completions_{step:05d}.parquet`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.rollouts.formats.independent.rows import Rows, build_prompt_fields, read_lines, to_number


def read_completions(path: Path) -> Rows:
    table = pq.read_table(path)
    schema = table.schema
    parts = [field.name for field in schema if pa.types.is_floating(field.type) and field.name != "advantage"]
    lines = table.to_pylist()
    totals = [sum(value for part in parts if (value := to_number(line[part])) is not None) for line in lines]
    weighted = not has_same_order(lines, totals)
    rows: Rows = []
    for line, total in zip(lines, totals, strict=True):
        completion = line["completion"]
        (answer,) = [completion] if isinstance(completion, str) else [turn["content"] for turn in completion]
        prompt_fields = build_prompt_fields(line["prompt"])
        rewards = {part: to_number(line[part]) for part in parts}
        others = {k: v for k, v in line.items() if k not in ("step", "prompt", "completion", "advantage", *parts)}
        rows.append(
            {
                **prompt_fields,
                "response": answer,
                "score": None if weighted or set(rewards.values()) == {None} else total,
                "rewards": rewards,
                "advantages": None if to_number(line["advantage"]) is None else [to_number(line["advantage"])],
                "step": line["step"],
                "ground_truth": others.pop("ground_truth", None),
                "extras": {key: value for key, value in others.items() if value is not None},
                "group": repr(line["prompt"]),
            }
        )
    return rows


def has_same_order(lines: list[dict[str, Any]], totals: list[float]) -> bool:
    """Whether the responses to a prompt have the same order by sum of rewards and by advantage."""
    groups = defaultdict(list)
    for line, total in zip(lines, totals, strict=True):
        groups[repr(line["prompt"])].append((total, line["advantage"]))
    return all(
        (a[0] - b[0]) * (a[1] - b[1]) >= 0 and (abs(a[0] - b[0]) < 1e-6) == (abs(a[1] - b[1]) < 1e-6)
        for group in groups.values()
        for a in group
        for b in group
    )


def read_recorded(path: Path) -> Rows:
    """What a callback and a reward function were given, one line for each completion."""
    rows: Rows = []
    for line in read_lines(path):
        prompt_fields, completion = build_prompt_fields(line.pop("prompt")), line.pop("completion")
        if isinstance(completion, list):
            (completion,) = [turn["content"] for turn in completion]
        row = {**prompt_fields, "response": completion, "group": prompt_fields["prompt"], "step": line.pop("step")}
        row["rewards"] = {name: to_number(value) for name, value in line.pop("rewards", {}).items()}
        row["response_ids"] = line.pop("completion_ids", None)
        row["advantages"] = [line.pop("advantage")] if "advantage" in line else None
        row["ground_truth"] = line.get("extra", {}).get("ground_truth")
        row |= {"index": line.pop("index")} if "index" in line else {}
        rows.append({**row, "extras": line})
    return rows


READERS = [
    (r"completions_\d{5}\.parquet$", read_completions),
    (r"trl/.*/(recorder|reward_tap)\.jsonl$", read_recorded),
]
