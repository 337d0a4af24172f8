"""ROLL: columns in one line of JSON, and the batches of rollout_mock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.rollouts.formats.independent.pickled import Instance, read_pickle, read_torch
from tests.rollouts.formats.independent.rows import Rows, filled, integers, number, numbers, prompt, read_lines


def read_rlvr(path: Path) -> Rows:
    (columns,) = read_lines(path)
    rows: Rows = []
    seen: dict[Any, int] = {}
    for values in zip(*columns.values(), strict=True):
        line = dict(zip(columns, values, strict=True))
        place = seen[line["id"]] = seen.get(line["id"], -1) + 1
        known = ("prompt", "messages", "responses", "scores", "id", "ground_truth", "source", "global_step")
        rows.append(
            {
                "prompt": line["prompt"],
                "messages": json.loads(line["messages"]),
                "response": line["responses"],
                "score": number(line["scores"]),
                "ground_truth": line["ground_truth"],
                "data_source": line["source"],
                "group": line["id"],
                "index": place,
                "trajectory": (line["id"], place),
                "step": line["global_step"],
                "extras": filled({key: decoded(value) for key, value in line.items() if key not in known}),
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
                **prompt(messages),
                "tools": json.loads(line["tools"]) or None,
                "trajectory": data["trajectory_id"],
                "score": number(data["reward_info"]["episode_reward"]),
                "finish_reason": data["failure_info"]["stop_reason"],
                "data_source": line["exp_name"],
                "step": line["global_step"],
                "group": prompt(messages)["prompt"],
                "extras": {"trajectory_data": data, "exp_name": line["exp_name"]},
            }
        )
    return rows


def decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value


def read_mock(path: Path) -> Rows:
    buffer, columns, _, meta = read_pickle(path.read_bytes()).state
    tensors = read_torch(buffer.state[0] if isinstance(buffer, Instance) else buffer).args[1]["_tensordict"]
    rows: Rows = []
    seen: dict[Any, int] = {}
    for row in range(len(tensors["input_ids"])):
        line = {name: column[row] for name, column in columns.items()}
        place = seen[line["id"]] = seen.get(line["id"], -1) + 1
        ids = tensors["input_ids"][row]
        is_prompt = tensors["prompt_mask"][row].astype(bool)  # as long as the tokens
        is_response = tensors["attention_mask"][row].astype(bool) & ~is_prompt
        record: dict[str, Any] = {
            "prompt": line["prompt"],
            "messages": json.loads(line["messages"]),
            "textless": True,
            "prompt_ids": integers(ids[is_prompt]),
            "response_ids": integers(ids[is_response]),
            "response_mask": integers(tensors["response_mask"][row][is_response]),
            "score": number(tensors["scores"][row]),
            "group": line["id"],
            "index": place,
            "trajectory": (line["id"], place),
            "ground_truth": line["ground_truth"],
            "data_source": line["source"],
            "step": meta["global_step"],
        }
        if "infer_logprobs" in tensors:  # one per token after the first
            record["logprobs"] = numbers(tensors["infer_logprobs"][row][is_response[1:]])
        known = ("prompt", "messages", "id", "ground_truth", "source")
        record["extras"] = filled({key: decoded(value) for key, value in line.items() if key not in known})
        rows.append(record)
    return rows


READERS = [
    (r"roll/rlvr_jsonl/.*\.jsonl$", read_rlvr),
    (r"roll/agentic_jsonl/.*\.jsonl$", read_agentic),
    (r"roll/mock/.*\.pkl$", read_mock),
]
