"""Run by the trainers' environment: opens exported folders with `load_dataset` and trains on them for two steps.

argv: folder, JSON list of [layout, folder]. Prints a JSON list of [rows, columns, whether the loss is a number].
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from datasets import load_dataset
from transformers import LlamaForSequenceClassification
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from examples.trl_grpo import make_model, make_tokenizer

TRAINERS: dict[str, Any] = {
    "sft": (SFTTrainer, SFTConfig),
    "preferences": (DPOTrainer, DPOConfig),
    "kto": (KTOTrainer, KTOConfig),
    "reward": (RewardTrainer, RewardConfig),
}
TEMPLATE = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"

folder = Path(sys.argv[1])
tokenizer = make_tokenizer()
tokenizer.chat_template = TEMPLATE


def make_reward_model() -> LlamaForSequenceClassification:
    config = make_model(tokenizer).config
    config.num_labels = 1
    return LlamaForSequenceClassification(config)


def train(layout: str, exported: str, output: Path) -> tuple[int, list[str], bool]:
    data = load_dataset(exported, split="train")
    if layout not in TRAINERS:  # a table
        return len(data), data.column_names, True
    trainer_class, config_class = TRAINERS[layout]
    args = config_class(
        output_dir=str(output), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, max_steps=2,
        per_device_train_batch_size=2, logging_steps=1, max_length=96, seed=1, bf16=False,
    )  # fmt: skip
    model = make_reward_model() if layout == "reward" else make_model(tokenizer)
    references = {"ref_model": make_model(tokenizer)} if layout in ("preferences", "kto") else {}
    trainer = trainer_class(model=model, args=args, processing_class=tokenizer, train_dataset=data, **references)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return len(data), data.column_names, bool(losses) and all(map(math.isfinite, losses))


exports = json.loads(sys.argv[2])
print(json.dumps([train(layout, exported, folder / f"out{at}") for at, (layout, exported) in enumerate(exports)]))
