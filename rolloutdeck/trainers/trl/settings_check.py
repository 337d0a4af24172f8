"""Checks which arguments of TRL's trainers would lose samples. Source: TRL 1.16.0: `trainer/grpo_trainer.py` (`log`,
the queue `_logs`), `trainer/rloo_trainer.py`, `trainer/grpo_config.py`."""

from __future__ import annotations

import re
from importlib import metadata

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings

CALLBACK = "callbacks=[RolloutdeckCallback()]"
# Trainers that write no file, and what to add.
TRAINERS_WITHOUT_FILE = {"RLOOTrainer": (CALLBACK,), "AsyncGRPOTrainer": ()}
LOGGING_STEPS = 10  # GRPOConfig's default
FIRST_PARQUET_VERSION = (0, 28)  # writes files
FIRST_ROLLOUT_FUNC_VERSION = (0, 29)  # calls rollout_func without vLLM
# A key that only a checkpoint's trainer_state.json has; that file has no arguments of GRPO.
STATE_KEY = "log_history"


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues of the arguments of the trainer and its config. `trl_version`: default, the installed one."""
    version = _find_version(settings)
    findings = _check_rollout_func(settings, version)
    if "RolloutdeckCallback" in str(settings.get("callbacks", "")):
        return findings
    if (trainer := settings.get("trainer")) in TRAINERS_WITHOUT_FILE:
        title, lost = f"{trainer} without a RolloutdeckCallback", "It prints completions and writes no file of them."
        return [*findings, SettingsIssue(title, lost, TRAINERS_WITHOUT_FILE[trainer])]
    if _has_config_elsewhere(settings):
        title = "log_completions, logging_steps and eval_strategy are not in this file: give them as well, as key=value"
        return [*findings, SettingsIssue(title, fix=(CALLBACK,))]
    return [
        *findings,
        *_check_written(settings, version),
        *_check_logging_interval(settings),
        *_check_evals(settings),
        *_check_repeated_rows(settings),
    ]


def _has_config_elsewhere(settings: TrainerSettings) -> bool:
    """Returns whether a script creates a trainer and leaves its config to a command line."""
    return "trainer" in settings and not any(
        name in settings for name in ("log_completions", "logging_steps", "eval_strategy", "output_dir")
    )


def _check_written(settings: TrainerSettings, version: tuple[int, ...]) -> list[SettingsIssue]:
    if version and version < FIRST_PARQUET_VERSION:
        lost = "Completions are printed; TRL writes them to a file from 0.28 on."
        return [SettingsIssue(f"TRL {'.'.join(map(str, version))}", lost, ("pip install -U trl", CALLBACK))]
    if settings.get("log_completions") or STATE_KEY in settings:
        return []
    lost = "Completions are written nowhere."
    return [SettingsIssue("log_completions is not set", lost, ("log_completions=True", CALLBACK))]


def _check_logging_interval(settings: TrainerSettings) -> list[SettingsIssue]:
    strategy = str(settings.get("logging_strategy", "steps"))
    every = settings.get("logging_steps", LOGGING_STEPS)
    lines = ("logging_strategy='steps'", "logging_steps=1", CALLBACK)
    if strategy in ("no", "epoch"):
        return [SettingsIssue(f"logging_strategy={strategy}", "Files are written when the trainer logs.", lines)]
    if not isinstance(every, (int, float)) or every == 1:
        return []
    title = f"logging_steps={every}" if "logging_steps" in settings else f"logging_steps is not set, so it is {every}"
    lost = "A file has the last generation before the trainer logs: earlier ones are lost."
    return [SettingsIssue(title, lost, lines)]


def _check_evals(settings: TrainerSettings) -> list[SettingsIssue]:
    history = settings.get(STATE_KEY)
    has_evals = isinstance(history, list) and any(str(key).startswith("eval_") for row in history for key in row)
    strategy = str(settings.get("eval_strategy") or "no")
    if not has_evals and (strategy == "no" or strategy.endswith(".NO")):
        return []
    title = "evals of this run" if has_evals else f"eval_strategy={strategy}"
    lost = "An eval overwrites the train file of its step, and only the last generation batch of its rows is stored."
    return [SettingsIssue(title, lost, (CALLBACK,))]


def _check_repeated_rows(settings: TrainerSettings) -> list[SettingsIssue]:
    iterations = settings.get("num_iterations", 1)
    per_generation, accumulation = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps", 1)
    repeats = isinstance(iterations, int) and iterations > 1
    if isinstance(per_generation, int) and isinstance(accumulation, int):
        repeats = repeats or per_generation > accumulation
    title = "num_iterations or steps_per_generation: consecutive steps write the same rows, trained on more than once"
    return [SettingsIssue(title)] if repeats else []


def _check_rollout_func(settings: TrainerSettings, version: tuple[int, ...]) -> list[SettingsIssue]:
    if not settings.get("rollout_func") or settings.get("use_vllm") is True:
        return []
    if "RLOO" in str(settings.get("trainer", "")):
        return [SettingsIssue("RLOOTrainer has no rollout_func: nothing is replayed")]
    if not version or version >= FIRST_ROLLOUT_FUNC_VERSION:
        return []
    lost = "TRL before 0.29 calls it with vLLM only and generates without a word: nothing is replayed."
    return [SettingsIssue(f"rollout_func in TRL {'.'.join(map(str, version))}", lost, ("pip install -U trl",))]


def _find_version(settings: TrainerSettings) -> tuple[int, ...]:
    try:
        version = str(settings.get("trl_version") or metadata.version("trl"))
    except metadata.PackageNotFoundError:
        return ()
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part) for part in match.groups() if part) if match else ()


def recommended_lines() -> list[str]:
    return [CALLBACK]


def store_lines() -> list[str]:
    return ['callbacks=[RolloutdeckCallback(keep="/shared/rl/PROJECT/RUN/kept")]']


def replay_lines() -> list[str]:
    return [
        "from rolloutdeck.trainers.trl import RolloutdeckCallback, replay_rollout_func",
        "GRPOTrainer(..., callbacks=[RolloutdeckCallback()], rollout_func=replay_rollout_func())",
    ]
