"""What of CURE's files is lost, and what keeps it. Read from Gen-Verse/CURE 69fe174: `run.py`,
`optimization/{sample,execute,reward}.py`, `evaluation/eval.py`.

No setting of CURE's keeps a step: each step writes over the files of the one before, so somebody has to take them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolloutdeck.trainer_api.types import Finding

Settings = Mapping[str, Any]

WATCH = "rolloutdeck watch optimization evaluation --project PROJECT --run RUN"


def check(settings: Settings, *, complete: bool) -> list[Finding]:
    """`settings`: the names of `optimization/optimization_config.py`."""
    return [*_overwritten(settings), *_evals(settings), *_joined(settings), *_restarted(settings)]


def _overwritten(settings: Settings) -> list[Finding]:
    steps = settings.get("total_steps")
    over = f" {steps} steps" if isinstance(steps, int) else " steps"
    title = f"the{over} write over temp_data/outputs-rl-*.json and rl_*data.json: only a watch keeps them apart"
    return [Finding(title, paste=(WATCH,))]


def _evals(settings: Settings) -> list[Finding]:
    every, steps = settings.get("eval_interval"), settings.get("total_steps")
    if not isinstance(every, int) or (isinstance(steps, int) and every > steps):
        return []
    title = "each eval writes over temp_data/outputs-eval-*.json, without the lengths of its responses"
    return [Finding(title, paste=(WATCH,))]


def _joined(settings: Settings) -> list[Finding]:
    if settings.get("separate_training", True) is not False:
        return []
    return [Finding("separate_training=False: rl_data.json does not say whether a row is a program or a test")]


def _restarted(settings: Settings) -> list[Finding]:
    name = settings.get("optimized_model_name", "optimized")
    title = f"a second run with optimized_model_name={name} in this folder writes over the results of the first"
    return [Finding(f"{title}, from which steps are counted")]


def recommended() -> list[str]:
    return [WATCH]


def keeping() -> list[str]:
    return []
