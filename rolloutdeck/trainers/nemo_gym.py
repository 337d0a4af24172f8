"""Rollouts that NeMo-Gym collects, and those that NeMo-RL collects with it: `trajectory_collection.jsonl`.

The file may have any name; a training is not part of it. Source: `run_from_config` in nemo_gym/rollout_collection.py,
NVIDIA-NeMo/Gym 07d6b0d0.
"""

from __future__ import annotations

from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split
from rolloutdeck.trainers.tables import parse_step_name

_PARAMETERS = "responses_create_params"


def _parse_step(path: PurePath) -> int | None:
    steps = (parse_step_name(name) for name in (path.stem, path.parent.name))
    return next((step for step in steps if step is not None), None)


def _is_rollouts(name: str, head: FileHead) -> bool:
    if not head.rows:  # its first line is longer than the bytes that were read
        return head.first_key == _PARAMETERS
    return any(_PARAMETERS in row and isinstance(row.get("response"), dict) for row in head.rows)


FILES = TrainerFiles(
    name="nemo_gym",
    kinds=(
        FileKind("nemo-gym", "rollouts", "*.jsonl", _is_rollouts, grows=True, step=_parse_step, stepless=True),
    ),
    guess_split=assume_split("eval", "NeMo-Gym collects rollouts without a training"),
    others={
        "*_materialized_inputs.jsonl": "inputs of rollouts",
        "*_failures.jsonl": "rollouts that failed",
        "*_aggregate_metrics.json": "summaries of rollouts",
    },
)  # fmt: skip
