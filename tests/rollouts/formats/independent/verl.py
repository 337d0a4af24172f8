"""verl: generations and metrics as JSON lines, and the batches of rollout skip."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.rollouts.formats.independent.pickled import Instance, read_pickle, read_torch
from tests.rollouts.formats.independent.pixels import convert_images
from tests.rollouts.formats.independent.rows import (
    SKIP,
    Rows,
    build_prompt_fields,
    drop_empty_values,
    read_lines,
    to_integers,
    to_number,
    to_numbers,
    to_text,
)

GENERATION_KEYS = ("input", "output", "gts", "score", "reward", "step", "uid")


def read_generations(path: Path) -> Rows:
    lines = read_lines(path)
    # What `json.dumps(default=str)` made of numpy values is a number again, if the key is one elsewhere.
    numeric = {key for line in lines for key, value in line.items() if isinstance(value, (bool, int, float))}
    numeric |= {key for key in lines[0] if {line.get(key) for line in lines} <= {"True", "False"}}
    n = 2  # val_kwargs.n of these runs; validation files keep the order of the data set
    rows: Rows = []
    for position, line in enumerate(lines):
        if str(line.get("uid")).startswith("pad"):
            rows.append(SKIP)
            continue
        row: dict[str, Any] = {
            "prompt": line["input"],
            "response": line["output"],
            "ground_truth": to_text(line.get("gts")),
            "score": to_number(line.get("reward", line.get("score"))),
            "step": line["step"],
            "group": line["input"],
        }
        if "uid" in line:
            group, session, output = line["uid"].rsplit("_", 2)
            row |= {"group": group, "index": int(session), "turn": int(output), "trajectory": f"{group}_{session}"}
        elif path.parent.name == "val":
            row["group"] = str(position // n)
        others = {key: value for key, value in line.items() if key not in GENERATION_KEYS}
        row["rewards"] = {
            key: to_number(replace_boolean_text(value)) for key, value in others.items() if key in numeric
        }
        if "reward" in line:
            row["rewards"]["score"] = to_number(line["score"])
        row["extras"] = {key: value for key, value in others.items() if key not in numeric and value is not None}
        rows.append(row)
    return rows


def replace_boolean_text(value: Any) -> float | None:
    return None if value is None else {"True": 1.0, "False": 0.0}.get(value) if value in ("True", "False") else value


def read_metrics(path: Path) -> Rows:
    lines = read_lines(path)
    return [
        {"metrics_of": line["step"], "values": {key: to_number(value) for key, value in line["data"].items()}}
        for line in lines
    ]


def read_gen_batch(path: Path) -> Rows:
    tensors, columns, meta = read_pickle(path.read_bytes()).state[:3]
    if isinstance(tensors, bytes):
        tensors = read_torch(tensors)
    else:  # VERL_DATAPROTO_SERIALIZATION_METHOD=numpy: {name: (dtype, shape, bytes)}
        kinds = {"int64": "<i8", "float32": "<f4"}
        tensors = {
            name: np.frombuffer(raw.tobytes(), kinds[kind.removeprefix("torch.")]).reshape(shape)
            for name, (kind, shape, raw) in tensors[2].items()
        }
    count = len(tensors["prompts"])
    labels: dict[str, Any] = {}
    if (labels_path := path.parent / "new_batch.dp").exists():  # 0.8; rows there are prompts, repeated n times
        labels = read_pickle(labels_path.read_bytes()).state[1]
        labels = {name: values.repeat(count // len(values)) for name, values in labels.items()}
    n = int(path.parents[1].name.partition("_N")[2].partition("_")[0])
    rows: Rows = []
    for row in range(count):
        values = {name: to_plain_value(column[row]) for name, column in {**labels, **columns}.items()}
        prompts, responses = tensors["prompts"][row], tensors["responses"][row]
        attention, width = tensors["attention_mask"][row], len(prompts)
        kept = attention[width:].astype(bool)
        record: dict[str, Any] = {
            **build_prompt_fields(convert_images(values["raw_prompt"])),
            "textless": True,
            "prompt_ids": to_integers(prompts[attention[:width].astype(bool)]),
            "response_ids": to_integers(responses[kept]),
            "response_mask": to_integers(tensors["response_mask"][row][kept]),
            "truncated": bool(kept.sum() >= len(responses)),
            "group": values.get("uid") or str(row // n),
            "policy_version": values.get("min_global_steps"),
        }
        if "rollout_log_probs" in tensors:
            record["logprobs"] = to_numbers(tensors["rollout_log_probs"][row][kept])
        if "rm_scores" in tensors:
            record["score"] = to_number(sum(map(float, tensors["rm_scores"][row][kept])))
        rewards = {key: values[key] for key in meta.get("reward_extra_keys", ())}
        add_values(record, values, rewards, values.get("__num_turns__"))
        rows.append(record)
    return rows


def read_tq_batch(path: Path) -> Rows:
    saved = read_torch(path)
    columns = saved["tensordict"].args[1]["_tensordict"]
    rows: Rows = []
    for row, (key, tag) in enumerate(zip(saved["keys"], saved["tags"], strict=True)):
        if tag.get("is_padding"):
            rows.append(SKIP)
            continue
        values = {name: select_value(column, row) for name, column in columns.items()}
        group, session, output = key.rsplit("_", 2)
        record: dict[str, Any] = {
            **build_prompt_fields(convert_images(values["raw_prompt"])),
            "textless": True,
            "prompt_ids": to_integers(values["prompts"]),
            "response_ids": to_integers(values["responses"]),
            "response_mask": to_integers(values["response_mask"]),
            "logprobs": to_numbers(values["rollout_log_probs"]) if "rollout_log_probs" in values else None,
            "score": to_number(sum(map(float, values["rm_scores"]))) if "rm_scores" in values else None,
            "group": group, "index": int(session), "turn": int(output), "trajectory": f"{group}_{session}",
            "metrics": values.get("metrics"),
        }  # fmt: skip
        extra = values["extra_fields"]
        record["policy_version"] = extra.get("min_global_steps")
        add_values(record, {**values, **extra}, extra.get("reward_extra_info", {}), values.get("num_turns"))
        rows.append(record)
    return rows


# Columns that a record has elsewhere, and those that it leaves out (docs/formats.md).
TENSORS = {"prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids", "rm_scores",
           "rollout_log_probs", "attention_mask"}  # fmt: skip
ELSEWHERE = {"raw_prompt", "prompt", "uid", "session_id", "data_source", "reward_model", "reward_extra_info",
             "extra_fields", "metrics", "num_turns", "__num_turns__", "global_steps", "index", "multi_modal_inputs",
             "tools_kwargs", "interaction_kwargs", "mm_processor_kwargs", "mm_processor_output", "extras",
             "dummy_tensor"}  # fmt: skip


def add_values(record: dict[str, Any], values: dict[str, Any], rewards: dict[str, Any], turns: Any) -> None:
    """Adds the parts of the reward, the labels and the other columns."""
    record["rewards"] = {
        key: to_number(value) for key, value in rewards.items() if isinstance(value, (bool, int, float))
    }
    record["ground_truth"] = to_text((values.get("reward_model") or {}).get("ground_truth"))
    record["data_source"] = values.get("data_source")
    extras = {"num_turns": turns, "dataset_index": values.get("index")}
    extras |= {key: value for key, value in rewards.items() if isinstance(value, str)}
    extras |= {key: value for key, value in values.items() if key not in ELSEWHERE | TENSORS | set(rewards)}
    if "extra_info" in values:  # the agent loop adds to it what the record has from another column
        repeated = {"index", "raw_prompt", "num_turns", "turn_scores", "tool_rewards", "min_global_steps",
                    "max_global_steps", "rollout_reward_scores"}  # fmt: skip
        extras["extra_info"] = drop_empty_values({k: v for k, v in values["extra_info"].items() if k not in repeated})
    record["extras"] = drop_empty_values(extras)


def to_plain_value(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def select_value(column: Any, row: int) -> Any:
    """The value of a row in a jagged tensor, a tensor, or a stack of other values."""
    if isinstance(column, np.ndarray):
        return column[row]
    if column.name.endswith("_rebuild_njt"):
        state = column.args[0]
        return state["values"][state["offsets"][row] : state["offsets"][row + 1]]
    assert isinstance(column, Instance) and column.name.endswith("NonTensorStack"), column
    return column.state["tensordicts"][row].state["non_tensordict"]["data"]


def read_val_table(path: Path) -> Rows:
    """What `ValidationGenerationsLogger` gives mlflow."""
    return [
        {
            "prompt": row["input"],
            "response": row["output"],
            "score": to_number(row["score"]),
            "group": row["input"],
            "step": 0,
        }
        for row in json.loads(path.read_text())
    ]


READERS = [
    (r"verl_jsonl/.*/metrics\.jsonl$", read_metrics),
    (r"verl_jsonl/.*\.jsonl$", read_generations),
    (r"verl_jsonl/.*mlflow_val_step\d+\.json$", read_val_table),
    (r"verl_(?:skip|v2|vision)/(?!broken/.*/[145]/).*/gen_batch\.dp$", read_gen_batch),
    (r"verl_(?:tq|vision)/.*/tq_batch\.pt$", read_tq_batch),
]
