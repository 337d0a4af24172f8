"""Run by the trainers' environment: how many of the generated rows TRL itself writes, without our callback.

argv: folder, JSON list of arguments of GRPOConfig. Prints a JSON list: per entry [generated rows, written rows].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from examples.trl_grpo import make_model, make_tokenizer

folder = Path(sys.argv[1])
tokenizer = make_tokenizer()
data = Dataset.from_dict({"prompt": [f"What is {number}?" for number in range(16)]})


def count_rows(output: Path, arguments: dict[str, Any]) -> tuple[int, int]:
    rows: list[int] = []

    def number(completions: list[str], log_extra: Any, **_: Any) -> list[float]:
        """Gives each row a number in a column of its own: a row that two files have counts once."""
        numbers = list(range(len(rows), len(rows) + len(completions)))
        rows.extend(numbers)
        log_extra("number", numbers)
        return [float(each) for each in numbers]

    args = GRPOConfig(
        output_dir=str(output), use_cpu=True, report_to=[], save_strategy="no", log_completions=True, disable_tqdm=True,
        num_generations=4, max_completion_length=4, max_steps=4, seed=3,
        **{"per_device_train_batch_size": 4, **arguments},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=make_model(tokenizer), args=args, processing_class=tokenizer, reward_funcs=[number], train_dataset=data
    )
    trainer.train()
    written = {
        row for file in output.glob("completions/*.parquet") for row in pq.read_table(file)["number"].to_pylist()
    }
    return len(rows), len(written)


print(json.dumps([count_rows(folder / str(index), each) for index, each in enumerate(json.loads(sys.argv[2]))]))
