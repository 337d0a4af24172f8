"""What of CURE's files is lost, and what keeps it. Read from Gen-Verse/CURE 69fe174: `run.py`,
`optimization/{sample,execute,reward}.py`, `evaluation/eval.py`.

No setting of CURE's keeps a step: each step writes over the files of the one before, so somebody has to take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue

TrainerSettings = Mapping[str, Any]

WATCH = "rolloutdeck watch optimization evaluation --project PROJECT --run RUN"


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """`settings`: the names of `optimization/optimization_config.py`."""
    return [*_overwritten(settings), *_evals(settings), *_joined(settings), *_restarted(settings)]


def _overwritten(settings: TrainerSettings) -> list[SettingsIssue]:
    steps = settings.get("total_steps")
    over = f" {steps} steps" if isinstance(steps, int) else " steps"
    title = f"the{over} write over temp_data/outputs-rl-*.json and rl_*data.json: only a watch keeps them apart"
    return [SettingsIssue(title, paste=(WATCH,))]


def _evals(settings: TrainerSettings) -> list[SettingsIssue]:
    every, steps = settings.get("eval_interval"), settings.get("total_steps")
    if not isinstance(every, int) or (isinstance(steps, int) and every > steps):
        return []
    title = "each eval writes over temp_data/outputs-eval-*.json, without the lengths of its responses"
    return [SettingsIssue(title, paste=(WATCH,))]


def _joined(settings: TrainerSettings) -> list[SettingsIssue]:
    if settings.get("separate_training", True) is not False:
        return []
    return [SettingsIssue("separate_training=False: rl_data.json does not say whether a row is a program or a test")]


def _restarted(settings: TrainerSettings) -> list[SettingsIssue]:
    name = settings.get("optimized_model_name", "optimized")
    title = f"a second run with optimized_model_name={name} in this folder writes over the results of the first"
    return [SettingsIssue(f"{title}, from which steps are counted")]


def recommended_lines() -> list[str]:
    return [WATCH]


def store_lines() -> list[str]:
    return []
