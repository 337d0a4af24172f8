"""Settings of CURE that lose data, and what prevents it. Source: Gen-Verse/CURE 69fe174: `run.py`,
`optimization/{sample,execute,reward}.py`, `evaluation/eval.py`.

No setting of CURE stores steps: each step overwrites the files of the step before, so something must copy them.
"""

from __future__ import annotations

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings, build_undetermined_issue
from rolloutdeck.trainer_config import is_unresolved

WATCH = "rolloutdeck watch optimization evaluation --project PROJECT --run RUN"


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues. `settings`: the names of `optimization/optimization_config.py`."""
    issues = [*_check_overwriting(settings), *_check_evaluations(settings)]
    return [*issues, *_check_joint_training(settings), *_check_restart(settings)]


def _check_overwriting(settings: TrainerSettings) -> list[SettingsIssue]:
    steps = settings.get("total_steps")
    step_count = f"{steps} steps" if isinstance(steps, int) else "steps"
    title = f"the {step_count} write over temp_data/outputs-rl-*.json and rl_*data.json: only a watch keeps them apart"
    return [SettingsIssue(title, fix=(WATCH,))]


def _check_evaluations(settings: TrainerSettings) -> list[SettingsIssue]:
    every, steps = settings.get("eval_interval"), settings.get("total_steps")
    if is_unresolved(every):
        lost = "If the run evaluates, each eval writes over temp_data/outputs-eval-*.json."
        return [build_undetermined_issue(f"eval_interval={every}", lost, (WATCH,))]
    if not isinstance(every, int) or (isinstance(steps, int) and every > steps):
        return []
    title = "each eval writes over temp_data/outputs-eval-*.json, without the lengths of its responses"
    return [SettingsIssue(title, fix=(WATCH,))]


def _check_joint_training(settings: TrainerSettings) -> list[SettingsIssue]:
    separate = settings.get("separate_training", True)
    if is_unresolved(separate):
        lost = "If it is False, rl_data.json does not say whether a row is a program or a test."
        return [build_undetermined_issue(f"separate_training={separate}", lost)]
    if separate is not False:
        return []
    return [SettingsIssue("separate_training=False: rl_data.json does not say whether a row is a program or a test")]


def _check_restart(settings: TrainerSettings) -> list[SettingsIssue]:
    name = settings.get("optimized_model_name", "optimized")
    title = f"a second run with optimized_model_name={name} in this folder writes over the results of the first"
    return [SettingsIssue(f"{title}, from which steps are counted")]


def recommended_lines() -> list[str]:
    return [WATCH]


def store_lines() -> list[str]:
    return []
