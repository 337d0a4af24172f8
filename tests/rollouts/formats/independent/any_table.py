"""Tables that many programs write: one row or several samples per line, and conversations. See "Tables" in
docs/formats.md. Only tables with a column for it have a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from tests.rollouts.formats.independent.rows import (
    Rows,
    build_prompt_fields,
    drop_empty_values,
    read_lines,
    render_prompt,
    render_response,
    split_conversation,
    to_number,
)
from tests.rollouts.formats.independent.trl import has_same_order
from tests.rollouts.formats.independent.verl import read_val_table


def row(question: str, response: str, score: Any, step: int = 0, **others: Any) -> dict[str, Any]:
    return {
        "prompt": question,
        "response": response,
        "score": to_number(score),
        "group": question,
        "step": step,
    } | others


def read_validation_table(path: Path) -> Rows:
    """verl's table in W&B: one line for each step, with three columns per sample."""
    rows: Rows = []
    for step, *cells in json.loads(path.read_text())["data"]:
        rows += [row(*cells[start : start + 3], step=step) for start in range(0, len(cells), 3)]
    return rows


def read_trl_table(path: Path) -> Rows:
    table = json.loads(path.read_text())
    return read_trl_rows([dict(zip(table["columns"], cells, strict=True)) for cells in table["data"]], "advantage")


def read_swift(path: Path) -> Rows:
    """ms-swift's lines have a list per column."""
    rows: Rows = []
    for line in read_lines(path):
        rows += read_trl_rows([dict(zip(line, cells, strict=True)) for cells in zip(*line.values(), strict=True)])
    return rows


def read_trl_rows(lines: list[dict[str, Any]], advantage: str = "advantages") -> Rows:
    """The columns of numbers between completion and advantage are the reward, and their sum the score."""
    known = ("step", "prompt", "completion", advantage, "solution")
    parts = [name for name in lines[0] if name not in known]
    totals = [sum(line[part] for part in parts) for line in lines]
    assert has_same_order([line | {"advantage": line[advantage]} for line in lines], totals)
    return [
        row(line["prompt"], line["completion"], total, int(line["step"]), advantages=[line[advantage]])
        | {"rewards": {part.removesuffix("_reward"): line[part] for part in parts}}
        | {"ground_truth": line.get("solution")}
        for line, total in zip(lines, totals, strict=True)
    ]


def read_by_row_name(path: Path) -> Rows:
    """As pandas writes it."""
    columns = json.loads(path.read_text())
    return [row(*(column[name] for column in columns.values())) for name in columns["prompt"]]


def read_report(path: Path) -> Rows:
    lines = json.loads(path.read_text())["results"]
    return [row(line["question"], line["response"], line["score"]) for line in lines]


def read_best_of_n(path: Path) -> Rows:
    rows: Rows = []
    for line in json.loads(path.read_text()):
        pairs = enumerate(zip(line["response"], line["score"], strict=True))
        rows += [row(line["question"], *pair, index=at, ground_truth=line["ground_truth"]) for at, pair in pairs]
    return rows


def read_main_generation(path: Path) -> Rows:
    """verl's main_generation adds the responses to the data set."""
    rows: Rows = []
    for line in pq.read_table(path).to_pylist():
        prompt, responses = line.pop("prompt"), line.pop("responses")
        fields = {
            **build_prompt_fields(prompt),
            "data_source": line.pop("data_source"),
            "extras": line,
            "group": str(prompt),
            "step": 0,
        }
        fields["ground_truth"] = line["reward_model"]["ground_truth"]
        rows += [{**fields, "response": response, "index": index} for index, response in enumerate(responses)]
    return rows


def read_art_groups(path: Path) -> Rows:
    rows: Rows = []
    for group_number, line in enumerate(read_lines(path)):
        for trajectory in line["trajectories"]:
            messages = [turn.get("message", turn) for turn in trajectory["messages_and_choices"]]
            extras = {key: trajectory[key] for key in ("metadata", "additional_histories", "logs")}
            fields = {"score": to_number(trajectory["reward"]), "metrics": trajectory["metrics"], "extras": extras}
            rows.append({**split_conversation(messages), **fields, "group": group_number, "step": 0})
    return rows


def read_sharegpt(path: Path) -> Rows:
    rows: Rows = []
    for line in json.loads(path.read_text()):
        roles = {"human": "user", "gpt": "assistant"}
        messages = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in line["conversations"]]
        fields = {"score": to_number(line["score"]), "step": 0, "extras": {"id": line["id"]}, "group": line["id"]}
        rows.append({**split_conversation(messages), **fields})
    return rows


def read_swift_inference(path: Path) -> Rows:
    rows: Rows = []
    for line in read_lines(path):
        texts = {
            "prompt": render_prompt(line["messages"][:-1]),
            "response": line["response"],
            "messages": line["messages"],
        }
        rows.append({**texts, "ground_truth": line["labels"], "step": 0, "group": texts["prompt"]})
    return rows


def read_verifiers_results(path: Path) -> Rows:
    """The results of verifiers before it wrote traces."""
    rows: Rows = []
    stored = ("info", "is_completed", "stop_condition", "token_usage", "correct", "num_turns")
    for line in read_lines(path):
        rows.append(
            {
                "prompt": render_prompt(line["prompt"]),
                "response": render_response(line["completion"]),
                "messages": line["prompt"] + line["completion"],
                "score": to_number(line["reward"]),
                "ground_truth": line["answer"],
                "truncated": line["is_truncated"],
                "timing": line["timing"],
                "metrics": line["metrics"],
                "group": line["example_id"],
                "step": 0,
                "extras": {key: line[key] for key in stored},
            }
        )
    return rows


def read_data_set(path: Path) -> Rows:
    """A shard of `save_to_disk`."""
    with path.open("rb") as file:
        lines = ipc.open_stream(file).read_all().to_pylist()
    return [
        {
            **build_prompt_fields(line["prompt"]), "response": line["completion"], "score": to_number(line["reward"]),
            "step": line["step"], "extras": drop_empty_values({"tags": line["tags"]}), "group": str(line["prompt"]),
        }
        for line in lines
    ]  # fmt: skip


READERS = [
    (r"others/val_step20\.json$", read_val_table),
    (r"folded/val_generations\.table\.json$", read_validation_table),
    (r"others/completions_40\.table\.json$", read_trl_table),
    (r"folded/completions\.jsonl$", read_swift),
    (r"folded/by_row_name\.json$", read_by_row_name),
    (r"folded/report\.json$", read_report),
    (r"folded/results\.json$", read_best_of_n),
    (r"folded/main_generation\.parquet$", read_main_generation),
    (r"folded/groups\.jsonl$", read_art_groups),
    (r"turns/sharegpt\.json$", read_sharegpt),
    (r"turns/infer_result\.jsonl$", read_swift_inference),
    (r"turns/results\.jsonl$", read_verifiers_results),
    (r"data-\d{5}-of-\d{5}\.arrow$", read_data_set),
]
