"""Tables: CSV, Parquet and a tracker's table, and ms-swift's log."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq

from tests.rollouts.formats.independent.rows import SKIP, Rows, drop_empty_values, read_lines, to_number


def read_csv(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {
                "prompt": line["question"],
                "response": line["response"],
                "score": to_number(line["reward"]),
                "rewards": {"format": to_number(line["format_reward"])},
                "step": int(line["global_step"]),
                "group": line["question"],
                "extras": drop_empty_values({"note": line["note"]}),
            }
            for line in csv.DictReader(file)
        ]


def read_parquet(path: Path) -> Rows:
    """A table without a step is step 0; bytes are shown by their count."""
    rows: Rows = []
    for line in pq.read_table(path).to_pylist():
        logged = line["logged"]
        extras = {"tokens": line["tokens"], "logged": f"<{len(logged)} bytes>" if logged else None}
        fields = {"prompt": line["problem"], "response": line["generation"], "score": to_number(line["score"])}
        rows.append({**fields, "group": line["problem"], "step": 0, "extras": drop_empty_values(extras)})
    return rows


def read_tracker_table(path: Path) -> Rows:
    table = json.loads(path.read_text())
    lines = [dict(zip(table["columns"], values, strict=True)) for values in table["data"]]
    return [
        {"response": line["text"], "score": to_number(line["reward"]), "step": line["global_step"], "group": ""}
        for line in lines
    ]


def read_swift_log(path: Path) -> Rows:
    """transformers shows `eval_` names below `eval/`, the others below `train/`. The last line is not of a step."""
    rows: Rows = []
    for line in read_lines(path):
        if "global_step/max_steps" not in line:
            rows.append(SKIP)
            continue
        step = int(line["global_step/max_steps"].split("/")[0])
        known = {name: to_number(value) for name, value in line.items() if isinstance(value, (int, float))}
        values = {f"eval/{k[5:]}" if k.startswith("eval_") else f"train/{k}": v for k, v in known.items()}
        rows.append({"metrics_of": step, "values": values})
    return rows


READERS = [
    (r"table/generations\.csv$", read_csv),
    (r"table/step_4\.parquet$", read_parquet),
    (r"table/generated_samples\.table\.json$", read_tracker_table),
    (r"swift/logging\.jsonl$", read_swift_log),
]
