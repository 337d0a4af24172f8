"""SkyRL: the files that it writes; `main`, a start script that records a run live, and `record` for your own script.

Depends on: `rolloutdeck.trainer_api`; the plug-in on `rolloutdeck.trainers.common`.
Invariant: the plug-in never raises into the training.

Training batches (`trainer.dump_data_batch`) and evaluations (`trainer.dump_eval_results`):
`{export_path}/dumped_data/global_step_{N}_training_input.pkl` and `{export_path}/dumped_evals/global_step_{N}_evals/
{data set}.jsonl`, with the metrics of the evaluation in `aggregated_results.jsonl`. An evaluation without a training is
in `eval_only`. Source: `dump_data` in skyrl/train/trainer.py, `dump_per_dataset_eval_results` in
skyrl/train/utils/trainer_utils.py, NovaSky-AI/SkyRL a9564572.
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

__all__ = ["FILES", "main", "record"]

__getattr__ = lazy_names(__name__, {"plugin": ("main", "record")})

_BATCH = re.compile(r"global_step_(\d{1,18})_training_input\.pkl\Z")
_EVAL_FOLDER = re.compile(r"global_step_(\d{1,18})_evals\Z")
_COLUMNS = ("input_prompt", "output_response", "env_class")
_CLASS = b"training_batch"


def _parse_eval_step(path: PurePath) -> int | None:
    return 0 if path.parent.name == "eval_only" else match_step(_EVAL_FOLDER, path.parent.name)


def _is_evaluation(name: str, head: FileHead) -> bool:
    if head.rows:
        return all(column in head.rows[0] for column in _COLUMNS)
    return head.first_key == _COLUMNS[0]  # its first line is longer than the bytes that were read


def _is_results(name: str, head: FileHead) -> bool:
    return any(key.startswith("eval/") for row in head.rows for key in row)


TIMING = TimingMetrics(
    "SkyRL",
    ("timing/step",),
    map_phases(
        "timing/",
        generation="generate",
        old_log_prob="fwd_logprobs_values_reward",
        advantage="compute_advantages_and_returns",
        update="train_critic_and_policy",
        weight_sync="sync_weights",
        evaluation="eval",
        checkpoint="save_checkpoints save_hf_model",
        waiting="wait_for_generation_buffer",
    ),
    frozenset(("evaluation",)),
    checkpoint_after=frozenset(("timing/wait_for_generation_buffer",)),  # of fully async
)

FILES = TrainerFiles(
    name="skyrl",
    timing=TIMING,
    kinds=(
        FileKind(
            "skyrl-batch", "a training batch", "*_training_input.pkl",
            lambda name, head: head.start.startswith(b"\x80") and _CLASS in head.start,
            step=lambda path: match_step(_BATCH, path.name), split=lambda path: "train",
        ),
        FileKind(
            "skyrl", "samples of an evaluation", "*.jsonl", _is_evaluation, step=_parse_eval_step, stepless=True,
            split=lambda path: "eval", producer=lambda path: path.stem,
        ),
        FileKind(
            "metrics", "results of an evaluation", "aggregated_results.jsonl", _is_results, step=_parse_eval_step,
            content="metrics",
        ),
    ),
    guess_split=assume_split("train", "only the names of files say it"),
)  # fmt: skip
