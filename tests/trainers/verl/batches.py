"""Batches as verl's agent loops return them, and their comparison; for the scripts in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto


def build_batch(config: Any, step: int, prompts: int) -> DataProto:
    """A batch as verl's agent loop returns it, with every kind of column that one has."""
    rows = prompts * config.actor_rollout_ref.rollout.n
    wide, long = config.data.max_prompt_length, config.data.max_response_length
    dice = torch.Generator().manual_seed(step)
    prompt, response = (torch.randint(1, 90, (rows, size), generator=dice) for size in (wide, long))
    mask = (torch.arange(long)[None] < torch.randint(1, long, (rows, 1), generator=dice)).long()
    scores = torch.rand((rows, long), generator=dice)
    scores[0, 0] = float("nan")
    tensors = {
        "prompts": prompt,
        "responses": response * mask,
        "response_mask": mask,
        "input_ids": torch.cat([prompt, response * mask], 1),
        "attention_mask": torch.cat([torch.ones_like(prompt), mask], 1),
        "position_ids": torch.arange(wide + long).repeat(rows, 1),
        "rollout_log_probs": -torch.rand((rows, long), generator=dice),
        "rm_scores": scores,
    }
    columns = {
        "__num_turns__": np.full(rows, 2, dtype=np.int32),
        "acc": np.arange(rows) % 2 == 0,
        "score": np.linspace(0, 1, rows),
        "pred": np.array([f"answer {row} \u2028 日本" for row in range(rows)]),
        "raw_prompt": build_object_array(
            [[{"role": "user", "content": f"step {step}, row {row}"}] for row in range(rows)]
        ),
        "turn_scores": build_object_array([[] for _ in range(rows)]),
        "reward_extra_info": build_object_array(
            [{"acc": True, "why": None, "parts": [0.5, row]} for row in range(rows)]
        ),
        "min_global_steps": build_object_array([step] * rows),
    }
    meta: dict[str, Any] = {"reward_extra_keys": ["acc", "score", "pred"]}
    if prompts == 1:
        meta["metrics"] = [{"generate_sequences": 0.5, "tool_calls": 0.0} for _ in range(rows)]
    else:
        meta["timing"] = {"agent_loop/slowest/generate_sequences": np.float64(1.5)}
    if config.trainer.experiment_name == "colocated":
        del tensors["rm_scores"]
        columns |= build_live_columns(step, rows)
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info=meta)


def build_live_columns(step: int, rows: int) -> dict[str, np.ndarray]:
    """The columns of the dataset that a batch without streamed rewards carries."""
    return {
        "uid": build_object_array([f"{step}-{row}" for row in range(rows)]),
        "data_source": build_object_array(["gsm8k"] * rows),
        "reward_model": build_object_array([{"style": "rule", "ground_truth": str(step)}] * rows),
        "extra_info": build_object_array([{"index": row, "split": "train"} for row in range(rows)]),
    }


def build_object_array(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def convert_batch(data: DataProto) -> dict[str, Any]:
    """Converts a batch to values that `torch.load(weights_only=True)` reads, with the dtypes of the columns."""
    columns = {name: [str(value.dtype), convert_value(value.tolist())] for name, value in data.non_tensor_batch.items()}
    tensors = {name: data.batch[name].clone() for name in data.batch.keys()}  # noqa: SIM118
    return {"tensors": tensors, "columns": columns, "meta": convert_value(data.meta_info)}


def convert_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): convert_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert_value(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def save_or_compare(found: dict[str, Any], into: Path, step: int, *, write: bool) -> None:
    if write:
        return torch.save(found, into / f"{step}.pt")
    compare(torch.load(into / f"{step}.pt", weights_only=True), found, f"step {step}")
    print(f"step {step} is equal")


def compare(left: Any, right: Any, where: str) -> None:
    assert type(left) is type(right), where
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        same = torch.equal(*(item.contiguous().view(torch.uint8) for item in (left, right)))  # NaN equals itself
        assert same, where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), f"{where}: {left.keys() ^ right.keys()}"
        for name, value in left.items():
            compare(value, right[name], f"{where}, {name}")
    elif isinstance(left, list):
        assert len(left) == len(right), where
        for row, pair in enumerate(zip(left, right, strict=True)):
            compare(*pair, f"{where} [{row}]")
    else:
        assert left == right, where
