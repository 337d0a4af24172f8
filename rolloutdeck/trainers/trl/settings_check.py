"""Which arguments of TRL's trainers would lose samples. Read from TRL 1.16.0: `trainer/grpo_trainer.py` (`log`, the
queue `_logs`), `trainer/rloo_trainer.py`, `trainer/grpo_config.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue

TrainerSettings = Mapping[str, Any]

CALLBACK = "callbacks=[RolloutdeckCallback()]"
SILENT = {"RLOOTrainer": (CALLBACK,), "AsyncGRPOTrainer": ()}  # trainers without a file, and what helps
LOGGING_STEPS = 10  # GRPOConfig's default
PARQUET, FREE_ROLLOUTS = (0, 28), (0, 29)  # the versions that began to write files, to call rollout_func without vLLM
# What only a checkpoint's trainer_state.json has; it does not hold the arguments of GRPO.
STATE = "log_history"


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """`settings`: the arguments of the trainer and its config. `trl_version` is asked of this Python if not given."""
    version = _version(settings)
    findings = _rollout_func(settings, version)
    if "RolloutdeckCallback" in str(settings.get("callbacks", "")):
        return findings
    if (trainer := settings.get("trainer")) in SILENT:
        lost = "It prints completions and writes no file of them."
        return [*findings, SettingsIssue(f"{trainer} without a RolloutdeckCallback", lost, SILENT[trainer])]
    if _elsewhere(settings):
        title = "log_completions, logging_steps and eval_strategy are not in this file: give them as well, as key=value"
        return [*findings, SettingsIssue(title, paste=(CALLBACK,))]
    return [*findings, *_written(settings, version), *_seldom(settings), *_overwritten(settings), *_repeated(settings)]


def _elsewhere(settings: TrainerSettings) -> bool:
    """A script that makes a trainer and leaves its config to a command line."""
    return "trainer" in settings and not any(
        name in settings for name in ("log_completions", "logging_steps", "eval_strategy", "output_dir")
    )


def _written(settings: TrainerSettings, version: tuple[int, ...]) -> list[SettingsIssue]:
    if version and version < PARQUET:
        lost = "Completions are printed; TRL writes them to a file from 0.28 on."
        return [SettingsIssue(f"TRL {'.'.join(map(str, version))}", lost, ("pip install -U trl", CALLBACK))]
    if settings.get("log_completions") or STATE in settings:
        return []
    lost = "Completions are written nowhere."
    return [SettingsIssue("log_completions is not set", lost, ("log_completions=True", CALLBACK))]


def _seldom(settings: TrainerSettings) -> list[SettingsIssue]:
    strategy = str(settings.get("logging_strategy", "steps"))
    every = settings.get("logging_steps", LOGGING_STEPS)
    lines = ("logging_strategy='steps'", "logging_steps=1", CALLBACK)
    if strategy in ("no", "epoch"):
        return [SettingsIssue(f"logging_strategy={strategy}", "Files are written when the trainer logs.", lines)]
    if not isinstance(every, (int, float)) or every == 1:
        return []
    title = f"logging_steps={every}" if "logging_steps" in settings else f"logging_steps is not set, so it is {every}"
    return [
        SettingsIssue(title, "A file holds the last generation before the trainer logs: those between are gone.", lines)
    ]


def _overwritten(settings: TrainerSettings) -> list[SettingsIssue]:
    history = settings.get(STATE)
    seen = isinstance(history, list) and any(str(key).startswith("eval_") for row in history for key in row)
    strategy = str(settings.get("eval_strategy") or "no")
    if not seen and (strategy == "no" or strategy.endswith(".NO")):
        return []
    title = "evals of this run" if seen else f"eval_strategy={strategy}"
    lost = "An eval overwrites the train file of its step, and of its own rows only the last generation batch is kept."
    return [SettingsIssue(title, lost, (CALLBACK,))]


def _repeated(settings: TrainerSettings) -> list[SettingsIssue]:
    times = settings.get("num_iterations", 1)
    held, summed = settings.get("steps_per_generation"), settings.get("gradient_accumulation_steps", 1)
    again = isinstance(times, int) and times > 1
    again = again or (isinstance(held, int) and isinstance(summed, int) and held > summed)
    title = "num_iterations or steps_per_generation: consecutive steps write the same rows, trained on more than once"
    return [SettingsIssue(title)] if again else []


def _rollout_func(settings: TrainerSettings, version: tuple[int, ...]) -> list[SettingsIssue]:
    if not settings.get("rollout_func") or settings.get("use_vllm") is True:
        return []
    if "RLOO" in str(settings.get("trainer", "")):
        return [SettingsIssue("RLOOTrainer has no rollout_func: nothing is replayed")]
    if not version or version >= FREE_ROLLOUTS:
        return []
    lost = "TRL before 0.29 calls it with vLLM only and generates without a word: nothing is replayed."
    return [SettingsIssue(f"rollout_func in TRL {'.'.join(map(str, version))}", lost, ("pip install -U trl",))]


def _version(settings: TrainerSettings) -> tuple[int, ...]:
    try:
        told = str(settings.get("trl_version") or metadata.version("trl"))
    except metadata.PackageNotFoundError:
        return ()
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", told)
    return tuple(int(part) for part in found.groups() if part) if found else ()


def recommended_lines() -> list[str]:
    return [CALLBACK]


def store_lines() -> list[str]:
    return ['callbacks=[RolloutdeckCallback(keep="/shared/rl/PROJECT/RUN/kept")]']


def replay_lines() -> list[str]:
    return [
        "from rolloutdeck.trainers.trl import RolloutdeckCallback, replay_rollout_func",
        "GRPOTrainer(..., callbacks=[RolloutdeckCallback()], rollout_func=replay_rollout_func())",
    ]
