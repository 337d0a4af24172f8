"""slime and miles: rollouts and train dumps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tests.rollouts.formats.independent.pickled import read_torch
from tests.rollouts.formats.independent.pixels import convert_images
from tests.rollouts.formats.independent.rows import (
    Rows,
    build_prompt_fields,
    drop_empty_values,
    to_integers,
    to_number,
    to_numbers,
)

SAMPLE_KEYS = ("group_index", "index", "rollout_id", "prompt", "tokens", "response", "response_length", "label",
               "reward", "loss_mask", "rollout_log_probs", "status", "non_generation_time",
               "weight_versions", "multimodal_inputs", "multimodal_train_inputs")  # fmt: skip


def read_rollout(path: Path) -> Rows:
    saved = read_torch(path)
    is_eval = path.name.startswith("eval_")
    executions = Counter(sample["rollout_id"] for sample in saved["samples"])
    turns: Counter[int] = Counter()
    set_counts, previous, rows = Counter[int](), None, []
    first: dict[int, Any] = {}
    for sample in saved["samples"]:
        length, tokens = sample["response_length"], to_integers(sample["tokens"])
        group_number, rollout = sample["group_index"], sample["rollout_id"]
        # The data sets of an eval are joined, and each numbers its groups from 0.
        if group_number != previous and first.get(group_number, sample["prompt"]) != sample["prompt"]:
            set_counts[group_number] += 1
        first[group_number], previous = sample["prompt"], group_number
        row: dict[str, Any] = {
            **build_prompt_fields(sample["prompt"]),
            "response": sample["response"],
            "prompt_ids": tokens[: len(tokens) - length],
            "response_ids": tokens[len(tokens) - length :],
            "response_mask": sample["loss_mask"],
            "logprobs": sample["rollout_log_probs"],
            "ground_truth": sample["label"],
            "finish_reason": sample["status"],
            "truncated": sample["status"] == "truncated",
            "group": (group_number, set_counts[group_number]),
            "step": saved["rollout_id"],
        }
        if not is_eval:
            together = rollout is not None and executions[rollout] > 1
            row["trajectory"] = str(rollout if together else sample["index"])
            row["turn"] = turns[rollout] if together else None
            turns[rollout] += 1
        extras = {key: value for key, value in sample.items() if key not in SAMPLE_KEYS}
        if extras.get("remove_sample") is False:
            del extras["remove_sample"]
        reward = sample["reward"]
        if isinstance(reward, dict):
            values = {key: to_number(value) for key, value in reward.items() if not isinstance(value, str)}
            main = next((key for key in ("score", "reward") if key in values), None)
            row["score"] = values.pop(main) if main else None
            row["rewards"] = values
            extras |= {key: value for key, value in reward.items() if isinstance(value, str)}
        else:
            row["score"] = to_number(reward)
        versions = sample["weight_versions"]
        row["policy_version"] = int(versions[0]) if versions else None
        if len(set(versions)) > 1:
            extras["weight_versions"] = versions
        if sample["non_generation_time"]:
            row["timing"] = {"non_generation": sample["non_generation_time"]}
        row["data_source"] = sample["metadata"].get("source_name") or sample["metadata"].get("data_source")
        extras |= convert_images(sample.get("multimodal_inputs") or {})
        row["extras"] = drop_empty_values(extras)
        rows.append(row)
    return rows


TRAINED_ARRAYS = {"loss_masks": "response_mask", "rollout_log_probs": "logprobs", "ref_log_probs": "ref_logprobs",
                  "advantages": "advantages"}  # fmt: skip
TRAINED_KEYS = ("tokens", "response_lengths", "rewards", "truncated", "source_names", "sample_index", "rollout_ids",
                "rollout_position", "total_lengths", "rollout_mask_sums")  # fmt: skip


def read_train(path: Path) -> Rows:
    saved = read_torch(path)
    samples, raw = saved.get("samples"), saved.get("raw_reward")
    if samples is None:  # miles: a list per key; `raw_reward` and `total_lengths` are of the whole batch
        columns = {key: value for key, value in saved["rollout_data"].items() if key != "raw_reward"}
        columns["sample_index"] = columns.pop("sample_indices")
        samples = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    executions = Counter(sample["rollout_ids"] for sample in samples)
    assert set(executions.values()) == {1}, "write the trajectories of shared rollouts here"
    rows: Rows = []
    for sample in samples:
        tokens, length = to_integers(sample["tokens"]), sample["response_lengths"]
        row: dict[str, Any] = {
            "textless": True,
            "prompt_ids": tokens[: len(tokens) - length],
            "response_ids": tokens[len(tokens) - length :],
            "trajectory": str(sample["sample_index"]),
            "truncated": bool(sample["truncated"]),
            "data_source": sample.get("source_names"),
            "score": to_number(raw[sample["rollout_position"]]) if raw else None,
            "step": saved["rollout_id"],
            "group": None,
        }
        extras: dict[str, Any] = {"normalized_reward": to_number(sample["rewards"])}
        for key, value in sample.items():
            if key in TRAINED_ARRAYS:
                row[TRAINED_ARRAYS[key]] = to_integers(value) if key == "loss_masks" else to_numbers(value)
            elif key in TRAINED_KEYS:
                continue
            elif isinstance(value, np.ndarray):
                extras[f"{key}_mean"] = fmean(map(float, value))
            elif not isinstance(value, list):
                extras[key] = value
        row["extras"] = extras
        rows.append(row)
    return rows


READERS = [(r"/rollout_data/(?:eval_)?\d+\.pt$", read_rollout), (r"/train_data/\d+_\d+\.pt$", read_train)]
