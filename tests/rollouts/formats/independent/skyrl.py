"""SkyRL: training batches and evaluations."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tests.rollouts.formats.independent.pickled import read_pickle, read_torch
from tests.rollouts.formats.independent.rows import SKIP, Rows, read_lines, to_integers, to_number, to_numbers


def read_batch(path: Path) -> Rows:
    value = read_pickle(path.read_bytes())
    content = value.args[1] if value.args else value.state
    tensors = {name: unpack_tensor(saved) for name, saved in content["batch_dict"].items() if saved is not None}
    meta = content["metadata"]
    bounds = meta.get("policy_prompt_boundaries") or []
    rows: Rows = []
    for row in range(content["batch_size"]):
        if row >= content["batch_size"] - meta["pad_size"]:
            rows.append(SKIP)
            continue
        kept = tensors["response_mask"][row].astype(bool)  # as wide as the longest response
        attention, tokens = tensors["attention_mask"][row].astype(bool), tensors["sequences"][row]
        is_prompt = attention.copy()
        is_prompt[len(tokens) - len(kept) :][kept] = False
        record: dict[str, Any] = {
            "textless": True,
            "prompt_ids": to_integers(tokens[is_prompt]),
            "response_ids": to_integers(tokens[len(tokens) - len(kept) :][kept]),
            "response_mask": to_integers(tensors["loss_mask"][row][kept] != 0),
        }
        for name, field in (
            ("rollout_logprobs", "logprobs"),
            ("base_action_log_probs", "ref_logprobs"),
            ("advantages", "advantages"),
        ):
            if name in tensors:
                record[field] = to_numbers(tensors[name][row][kept])
        means = ("action_log_probs", "returns", "values", "kl")
        record["extras"] = {
            f"{name}_mean": fmean(map(float, tensors[name][row][kept])) for name in means if name in tensors
        }
        group = next((at for at, (first, end) in enumerate(bounds) if first <= row < end), None)
        record["group"] = tuple(record["prompt_ids"]) if group is None else group
        rows.append(record)
    return rows


def unpack_tensor(saved: Any) -> Any:
    if isinstance(saved, dict) and saved["format"] == "numpy":
        return np.frombuffer(saved["data"], saved["dtype"]).reshape(saved["shape"])
    return read_torch(saved["data"] if isinstance(saved, dict) else saved)


def read_eval(path: Path) -> Rows:
    rows: Rows = []
    for line in read_lines(path):
        score = line["score"]
        known = ("input_prompt", "output_response", "score", "stop_reason", "data_source")
        ground_truth = (line["env_extras"].get("reward_spec") or {}).get("ground_truth")
        rows.append(
            {
                "prompt": line["input_prompt"],
                "response": line["output_response"],
                "score": to_number(sum(score) if isinstance(score, list) else score),
                "finish_reason": line["stop_reason"],
                "data_source": line["data_source"],
                "ground_truth": ground_truth,
                "group": line["input_prompt"],
                "step": 0,
                "extras": {
                    **{key: value for key, value in line.items() if key not in known},
                    "token_scores": score,
                },
            }
        )
    return rows


def read_results(path: Path) -> Rows:
    """The folder has the step, and every number is a metric."""
    step = int(path.parent.name.split("_")[2])
    return [
        {"metrics_of": step, "values": {key: to_number(value) for key, value in line.items()}}
        for line in read_lines(path)
    ]


READERS = [
    (r"global_step_\d+_training_input\.pkl$", read_batch),
    (r"dumped_evals/.*/(?!aggregated)\w+\.jsonl$", read_eval),
    (r"others/global_step_40_evals\.jsonl$", read_eval),
    (r"dumped_evals/.*/aggregated_results\.jsonl$", read_results),
]
