"""NeMo-RL's own `Logger`, called as its GRPO training calls it, with `record`.

    python training.py DIR [broken]     `broken`: the server's address and every row are unusable

Its trackers of other services are not installed here; modules without content stand for them.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

for name in ("mlflow", "swanlab", "wandb"):
    if find_spec(name) is None:
        sys.modules[name] = ModuleType(name)

import torch  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402
from nemo_rl.utils.logger import Logger  # noqa: E402

from rolloutdeck.trainers import nemo_rl  # noqa: E402

folder, broken = sys.argv[1], "broken" in sys.argv
off = dict.fromkeys(("wandb_enabled", "swanlab_enabled", "mlflow_enabled", "monitor_gpus"), False)
logger_config = {"log_dir": f"{folder}/logs", **off, "tensorboard_enabled": True, "tensorboard": {}}
logger_config["wandb"] = {"project": "math", "name": "nemo-grpo"}
config = {"logger": logger_config, "checkpointing": {"enabled": True, "checkpoint_dir": f"{folder}/checkpoints"}}
logger = nemo_rl.record(Logger(logger_config), config)
for step in (1, 2):
    rows = 4
    tokens = torch.arange(rows * 6).reshape(rows, 6) + 100 * step
    mask = torch.tensor([[0, 0, 1, 1, 1, 0]] * rows)
    log_data = {
        "content": [[f"What is {row} + {step}?", f"It is {row + step}."] for row in range(rows)],
        "rewards": torch.tensor([float(row % 2) for row in range(rows)]).tolist(),
        "input_lengths": torch.tensor([5] * rows).tolist(),
        "token_ids": tokens.tolist(),
        "token_loss_mask": mask.tolist(),
        "sample_loss_mask": torch.ones(rows).tolist(),
        "advantages": (mask * 0.5).tolist(),
        "generation_logprobs": (mask * -0.25).tolist(),
        "prev_logprobs": (mask * -0.125).tolist(),
    }
    if broken:
        log_data["content"] = [object()] * rows
    batch = BatchedDataDict(log_data) if step == 2 else log_data
    logger.log_batched_dict_as_jsonl(batch, f"train_data_step{step}.jsonl")
    logger.log_metrics({"loss": torch.tensor(0.5 * step), "reward": 0.5}, step, prefix="train")
    logger.log_metrics({"total_step_time": 1.5}, step, prefix="timing/train", step_finished=True)
    messages = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    logger.log_batched_dict_as_jsonl({"content": [messages], "rewards": [1.0]}, f"val_data_step{step}.jsonl")
    logger.log_metrics({"accuracy": 1.0}, step, prefix="validation")
logger.log_hyperparams({"a": {"b": 1}})
logger.finish()
print("trained")
