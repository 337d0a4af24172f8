"""NeMo-RL: the files that it writes, and `record()`, which records a run live.

Depends on: `rolloutdeck.trainer_api`; the plug-in on `rolloutdeck.trainers.common`.
Invariant: the plug-in never raises into the training.

Source: `log_batched_dict_as_jsonl` in nemo_rl/utils/logger.py, NVIDIA-NeMo/RL 7ea279a.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from rolloutdeck.lazy import lazy_names
from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    TimingMetrics,
    TrainerFiles,
    assume_split,
    map_phases,
    match_step,
)

__all__ = ["FILES", "record"]

__getattr__ = lazy_names(__name__, {"plugin": ("record",)})

DUMP_FILE = re.compile(r"(train|val)_data_step(\d{1,18})\.jsonl\Z")


def _parse_split(path: PurePath) -> str:
    match = DUMP_FILE.match(path.name)
    return "eval" if match and match[1] == "val" else "train"


def _is_samples(name: str, head: FileHead) -> bool:
    return head.has_key("content") or head.first_key == "agent_ref"


TIMING = TimingMetrics(
    "NeMo-RL",
    ("timing/train/total_step_time",),
    map_phases(
        "timing/train/",
        generation="generation",
        waiting="exposed_generation",
        reward="reward_calculation",
        old_log_prob="policy_and_reference_logprobs logprob_inference_prep",
        advantage="advantage_calculation",
        update="policy_training training_prep",
        weight_sync="prepare_for_generation/total weight_sync",
        evaluation="total_validation_time",
        checkpoint="checkpointing",
    ),
)

FILES = TrainerFiles(
    name="nemo_rl",
    timing=TIMING,
    kinds=(
        FileKind(
            "nemo-rl", "samples of a step", "*_data_step*.jsonl", _is_samples,
            step=lambda path: match_step(DUMP_FILE, path.name), split=_parse_split,
        ),
    ),
    guess_split=assume_split("train", "NeMo-RL names its validations"),
    others={"latest_checkpoint_status.json": "states of checkpoints"},
)  # fmt: skip
