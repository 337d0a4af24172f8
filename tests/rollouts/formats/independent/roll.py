"""ROLL: columns in one line of JSON, and the batches of rollout_mock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.pickled import Instance, read_pickle, read_torch
from tests.rollouts.formats.independent.rows import (
    Rows,
    build_prompt_fields,
    drop_empty_values,
    read_lines,
    to_integers,
    to_number,
    to_numbers,
)


def read_rlvr(path: Path) -> Rows:
    (columns,) = read_lines(path)
    rows: Rows = []
    seen: dict[Any, int] = {}
    for values in zip(*columns.values(), strict=True):
        line = dict(zip(columns, values, strict=True))
        index = seen[line["id"]] = seen.get(line["id"], -1) + 1
        known = ("prompt", "messages", "responses", "scores", "id", "ground_truth", "source", "global_step")
        rows.append(
            {
                "prompt": line["prompt"],
                "messages": json.loads(line["messages"]),
                "response": line["responses"],
                "score": to_number(line["scores"]),
                "ground_truth": line["ground_truth"],
                "data_source": line["source"],
                "group": line["id"],
                "index": index,
                "trajectory": (line["id"], index),
                "step": line["global_step"],
                "extras": drop_empty_values(
                    {key: decode_json_text(value) for key, value in line.items() if key not in known}
                ),
            }
        )
    return rows


def read_agentic(path: Path) -> Rows:
    (columns,) = read_lines(path)
    rows: Rows = []
    for values in zip(*columns.values(), strict=True):
        line = dict(zip(columns, values, strict=True))
        data, messages = json.loads(line["trajectory_data"]), json.loads(line["messages"])
        assert all(message["role"] != "assistant" for message in messages), "write the response here"
        rows.append(
            {
                **build_prompt_fields(messages),
                "tools": json.loads(line["tools"]) or None,
                "trajectory": data["trajectory_id"],
                "score": to_number(data["reward_info"]["episode_reward"]),
                "finish_reason": data["failure_info"]["stop_reason"],
                "data_source": line["exp_name"],
                "step": line["global_step"],
                "group": build_prompt_fields(messages)["prompt"],
                "extras": {"trajectory_data": data, "exp_name": line["exp_name"]},
            }
        )
    return rows


def decode_json_text(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def read_mock(path: Path) -> Rows:
    buffer, columns, _, meta = read_pickle(path.read_bytes()).state
    tensors = read_torch(buffer.state[0] if isinstance(buffer, Instance) else buffer).args[1]["_tensordict"]
    rows: Rows = []
    seen: dict[Any, int] = {}
    for row in range(len(tensors["input_ids"])):
        line = {name: column[row] for name, column in columns.items()}
        index = seen[line["id"]] = seen.get(line["id"], -1) + 1
        ids = tensors["input_ids"][row]
        is_prompt = tensors["prompt_mask"][row].astype(bool)  # as long as the tokens
        is_response = tensors["attention_mask"][row].astype(bool) & ~is_prompt
        record: dict[str, Any] = {
            "prompt": line["prompt"],
            "messages": json.loads(line["messages"]),
            "textless": True,
            "prompt_ids": to_integers(ids[is_prompt]),
            "response_ids": to_integers(ids[is_response]),
            "response_mask": to_integers(tensors["response_mask"][row][is_response]),
            "score": to_number(tensors["scores"][row]),
            "group": line["id"],
            "index": index,
            "trajectory": (line["id"], index),
            "ground_truth": line["ground_truth"],
            "data_source": line["source"],
            "step": meta["global_step"],
        }
        if "infer_logprobs" in tensors:  # one per token after the first
            record["logprobs"] = to_numbers(tensors["infer_logprobs"][row][is_response[1:]])
        known = ("prompt", "messages", "id", "ground_truth", "source")
        record["extras"] = drop_empty_values(
            {key: decode_json_text(value) for key, value in line.items() if key not in known}
        )
        rows.append(record)
    return rows


READERS = [
    (r"roll/rlvr_jsonl/.*\.jsonl$", read_rlvr),
    (r"roll/agentic_jsonl/.*\.jsonl$", read_agentic),
    (r"roll/mock/.*\.pkl$", read_mock),
]
