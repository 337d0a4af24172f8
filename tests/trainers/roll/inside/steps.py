"""ROLL's own RolloutMockMixin, in a process of ROLL's: it dumps steps, and loads them again.

    python steps.py dump DIR STEP...    batches of training as RLVR has them; from step 5 on as agents have them
    python steps.py load DIR STEP...    prints a JSON object: step -> what ROLL holds, or the error it ends with

`final` is, by row, how many tokens ROLL's get_sample_level_mask leaves to train on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from roll.configs.base_config import RolloutMockConfig
from roll.distributed.scheduler.protocol import DataProto
from roll.distributed.scheduler.rollout_mock_mixin import RolloutMockMixin
from roll.utils.functionals import get_sample_level_mask

ROWS, PROMPT, RESPONSE = 8, 6, 500
FIRST_AGENT_STEP = 5
NO_FILTER = SimpleNamespace(max_len_mask=False, difficulty_mask=False, error_max_len_clip=False)


class Scheduler(RolloutMockMixin):
    def __init__(self, mode: str, folder: str) -> None:
        self.config = SimpleNamespace(rollout_mock=RolloutMockConfig(enable=True, mode=mode, dump_dir=folder))
        self.mode = "train"
        self._init_rollout_mock()


def build_batch(step: int) -> DataProto:
    chance = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, 200, (ROWS, PROMPT + RESPONSE), generator=chance)
    written = torch.zeros_like(tokens)
    written[:, PROMPT:] = 1
    tensors = {
        "prompts": tokens[:, :PROMPT].clone(),
        "responses": tokens[:, PROMPT:].clone(),
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "response_mask": written,
        "prompt_mask": (1 - written).bool(),
        "scores": torch.rand(ROWS, generator=chance).half(),
        "origin_prompt_id": torch.arange(ROWS) // 4,
    }
    columns = {
        "id": np.array([f"p{row // 4}" for row in range(ROWS)], dtype=object),
        "domain": np.array(["math_rule"] * ROWS, dtype=object),
        "prompt": np.array([f"What is {step} + {row // 4}?" for row in range(ROWS)], dtype=object),
        "ground_truth": np.array([str(step + row // 4) for row in range(ROWS)], dtype=object),
    }
    meta = {"global_step": step, "metrics": {"scheduler/time": 1.5}}
    return DataProto.from_dict(tensors, columns, meta_info=meta)


def build_agent_batch(step: int) -> DataProto:
    """Trajectories, as roll/pipeline/agentic/env_manager/traj_env_manager.py puts them together."""
    created = build_batch(step)
    tensors = {name: created.batch[name] for name in ("input_ids", "attention_mask", "response_mask", "prompt_mask")}
    scores = torch.zeros(ROWS, PROMPT + RESPONSE)
    scores[:, -1] = created.batch["scores"].float()
    columns = {
        "env_ids": np.array(range(ROWS), dtype=object),
        "group_ids": np.array([row // 4 for row in range(ROWS)], dtype=object),
        "tags": np.array(["FrozenLake"] * ROWS, dtype=object),
        "episode_scores": np.array(list(np.linspace(0, 1, ROWS)), dtype=object),
    }
    meta = {"global_step": step, "metrics": {"env/FrozenLake/success": [0.5], "env/response_length": np.float64(3)}}
    result = DataProto.from_dict({**tensors, "scores": scores}, columns, meta_info=meta)
    result.non_tensor_batch.update({"step_scores": np.array([[0.0, 0.5]] * ROWS, dtype=object)})
    return result


def read_batch(found: DataProto) -> dict[str, Any]:
    tensors = {
        name: hashlib.sha256(column.numpy().tobytes()).hexdigest() for name, column in sorted(found.batch.items())
    }
    columns = {name: list(map(str, column)) for name, column in sorted(found.non_tensor_batch.items())}
    final = []
    if "responses" in found.batch:
        left, _ = get_sample_level_mask(found, NO_FILTER)
        final = left.batch["final_response_mask"].sum(-1).int().tolist()
    return {"rows": len(found), "tensors": tensors, "columns": columns, "meta": str(found.meta_info), "final": final}


async def main(action: str, folder: str, steps: list[int]) -> None:
    scheduler, result = Scheduler({"dump": "dump", "load": "mock"}[action], folder), {}
    for step in steps:
        if action == "dump":
            await scheduler._maybe_dump_batch(
                build_agent_batch(step) if step >= FIRST_AGENT_STEP else build_batch(step), step
            )
            continue
        try:
            result[step] = read_batch(await scheduler._load_mock_batch(step))
        except FileNotFoundError as error:
            result[step] = {"error": f"FileNotFoundError: {str(error).splitlines()[0]}"}
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], [int(word) for word in sys.argv[3:]]))
