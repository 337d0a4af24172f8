"""TRL: its files, settings checks, replay, and the callback `from rolloutdeck.trainers.trl import RolloutdeckCallback`.

Depends on: `rolloutdeck.trainer_api`; replay on `rolloutdeck.replay`.
Invariant: importing it does not import TRL.

Source: TRL 1.16.0 and 1.9.2 (`GRPOTrainer.log` with `log_completions`). See `trl.plugin` for the callback.
"""

from __future__ import annotations

import re

from rolloutdeck.lazy import lazy_names
from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    FunctionReference,
    TimingMetrics,
    Trainer,
    assume_split,
    match_step,
)

__all__ = ["TRAINER", "RolloutdeckCallback", "record_reward", "replay_rollout_func"]

__getattr__ = lazy_names(
    __name__,
    {
        "plugin.callback": ("RolloutdeckCallback",),
        "plugin.replay_func": ("replay_rollout_func",),
        "plugin.reward_function": ("record_reward",),
    },
)

_FILE = re.compile(r"completions_(\d{1,18})\.parquet\Z")


def _is_parquet(name: str, head: FileHead) -> bool:
    return head.start.startswith(b"PAR1")


TIMING = TimingMetrics(
    "TRL",
    ("train/step_time", "step_time"),
    {"timing_s/gen": "generation"},
    setup_line="GRPOTrainer(..., callbacks=[RolloutdeckCallback()])",
)

TRAINER = Trainer(
    name="trl",
    timing=TIMING,
    kinds=(
        FileKind(
            "trl-completions", "samples of a step", "completions_*.parquet", _is_parquet,
            step=lambda path: match_step(_FILE, path.name),
        ),
    ),
    # An eval overwrites the file of its step, and no column states the split of a row.
    guess_split=assume_split("train", "TRL writes the rows of an eval into the train file of its step"),
    loads=("trl-rollout",),
    selected_actions={"": ("regenerate", "mask", "drop")},
    drops_in_place=True,
    numbers_rows=True,
    setting_names=(
        "output_dir", "trainer", "log_completions", "logging_steps", "model_name_or_path", "learning_rate", "max_steps",
        "eval_strategy", "num_generations", "per_device_train_batch_size", "callbacks", "log_history", "GRPOConfig()",
        "RLOOConfig()",
    ),
    instructions=(
        "Add this to the arguments of GRPOTrainer or RLOOTrainer, after\n"
        "`from rolloutdeck.trainers.trl import RolloutdeckCallback`:"
    ),
    check_settings=FunctionReference("rolloutdeck.trainers.trl.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.trl.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.trl.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.trl.settings_check:recommended_lines"),
    store_lines=FunctionReference("rolloutdeck.trainers.trl.settings_check:store_lines"),
    replay_lines=FunctionReference("rolloutdeck.trainers.trl.settings_check:replay_lines"),
)  # fmt: skip
