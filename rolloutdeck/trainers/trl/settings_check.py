"""Checks which arguments of TRL's trainers would lose samples. Source: TRL 1.16.0: `trainer/grpo_trainer.py` (`log`,
the queue `_logs`), `trainer/rloo_trainer.py`, `trainer/grpo_config.py`; f2cd5771: `experimental/`."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings, build_undetermined_issue
from rolloutdeck.trainer_config import is_unresolved, list_unread_arguments
from rolloutdeck.trainers.trl.generation import LOGGING_STEPS, estimate_generations_per_file

CALLBACK = "callbacks=[RolloutdeckCallback()]"
# Trainers that write no file, and what to add.
TRAINERS_WITHOUT_FILE = {"RLOOTrainer": (CALLBACK,), "AsyncGRPOTrainer": ()}
TRAINERS_WITHOUT_GENERATION = ("SFT", "DPO", "KTO", "Reward", "BCO", "CPO", "ORPO", "PRM", "TPO")
# Trainers that generate, write no file, and have another loop than GRPO, which the callback records.
OTHER_TRAINERS = (
    "A2PO", "Distillation", "GKD", "GOLD", "IWOPD", "NashMD", "OnlineDPO", "PPO", "SDFT", "SDPO", "SSD",
    "ServerDistillation", "XPO",
)  # fmt: skip
FIRST_PARQUET_VERSION = (0, 28)  # writes files
FIRST_ROLLOUT_FUNC_VERSION = (0, 29)  # calls rollout_func without vLLM
# A key that only a checkpoint's trainer_state.json has; that file has no arguments of GRPO.
STATE_KEY = "log_history"
CHECKED_SETTINGS = ("log_completions", "logging_steps", "eval_strategy")
# Settings that only trainers with a reward have: without one of them, a file may be of any trainer.
GENERATION_SETTINGS = (
    "log_completions", "num_generations", "max_completion_length", "num_iterations", "steps_per_generation",
    "rollout_func", "generation_batch_size", "reward_funcs", "reward_weights", "use_vllm", "vllm_mode", "epsilon",
    "scale_rewards", "loss_type", "trl_version", "callbacks", STATE_KEY,
)  # fmt: skip


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues of the arguments of the trainer and its config. `trl_version`: default, the installed one."""
    settings = _select_trainer(settings)
    trainer = str(settings.get("trainer", ""))
    if trainer.removesuffix("Trainer") in TRAINERS_WITHOUT_GENERATION:
        return [SettingsIssue(f"{trainer} generates nothing: it has metrics and no samples")]
    version = _find_version(settings)
    findings = _check_rollout_func(settings, version)
    if "RolloutdeckCallback" in str(settings.get("callbacks", "")):
        return findings
    return [*findings, *_hedge_unknown_callbacks(settings, _check_files(settings, trainer, version))]


def _select_trainer(settings: TrainerSettings) -> TrainerSettings:
    """Returns the settings without those of other trainers, if a script has several, such as SFT and then GRPO."""
    trainers = [name.removesuffix("Trainer()") for name in settings if name.endswith("Trainer()")]
    generating = [trainer for trainer in trainers if trainer not in TRAINERS_WITHOUT_GENERATION]
    if len(trainers) < 2 or not generating:
        return settings
    chosen = generating[-1]
    selected = {**settings, "trainer": f"{chosen}Trainer"}
    for other in (trainer for trainer in trainers if trainer != chosen):
        for name, value in _list_arguments(settings, other):
            if selected.get(name) == value:
                del selected[name]
    return {**dict(_list_arguments(settings, chosen)), **selected}


def _list_arguments(settings: TrainerSettings, trainer: str) -> list[tuple[str, Any]]:
    calls = [settings.get(f"{trainer}{suffix}()", {}) for suffix in ("Config", "Trainer")]
    return [item for arguments in calls for item in arguments.items()]


def _check_files(settings: TrainerSettings, trainer: str, version: tuple[int, ...]) -> list[SettingsIssue]:
    if trainer in TRAINERS_WITHOUT_FILE:
        title, lost = f"{trainer} without a RolloutdeckCallback", "It prints completions and writes no file of them."
        return [SettingsIssue(title, lost, TRAINERS_WITHOUT_FILE[trainer])]
    if trainer.removesuffix("Trainer") in OTHER_TRAINERS:
        lost = "It writes no file of what it generates, and RolloutdeckCallback records GRPO and RLOO only."
        return [SettingsIssue(f"{trainer} is not supported", lost)]
    if _has_config_elsewhere(settings, trainer):
        title = "log_completions, logging_steps and eval_strategy are not in this file: give them as well, as key=value"
        return [SettingsIssue(title, fix=(CALLBACK,))]
    if not trainer and not _has_generation_settings(settings):
        lost = "Those of GRPOTrainer are checked if you also give trainer=GRPOTrainer."
        return [build_undetermined_issue("the trainer: every trainer of TRL has these settings", lost)]
    issues = [*_check_unread_arguments(settings), *_check_written(settings, version)]
    return [*issues, *_check_logging_interval(settings), *_check_evals(settings), *_check_repeated_rows(settings)]


def _hedge_unknown_callbacks(settings: TrainerSettings, issues: list[SettingsIssue]) -> list[SettingsIssue]:
    """Returns the issues, as possible losses if the list of callbacks may contain ours."""
    groups = list_unread_arguments(settings, ["Trainer"]) if "callbacks" not in settings else []
    callbacks = str(settings.get("callbacks", ""))
    if is_unresolved(settings.get("callbacks")) and not callbacks.startswith("[") and "Callback(" not in callbacks:
        groups.append(f"callbacks={callbacks}")
    losing = [issue for issue in issues if issue.lost_data]
    if not groups or not losing:
        return issues
    lost = f"Without a RolloutdeckCallback: {losing[0].title}. {losing[0].lost_data}"
    rest = [issue for issue in issues if not issue.lost_data]
    return [build_undetermined_issue(groups[0], lost, (CALLBACK,)), *rest]


def _has_config_elsewhere(settings: TrainerSettings, trainer: str) -> bool:
    """Returns whether a script creates a trainer and leaves its config to a command line."""
    creates = [name for name in settings if name.endswith(("Config()", "Arguments()"))]
    has_config = any(trainer.removesuffix("Trainer") in name or "TrainingArguments" in name for name in creates)
    return bool(trainer) and not has_config and not any(name in settings for name in CHECKED_SETTINGS)


def _has_generation_settings(settings: TrainerSettings) -> bool:
    creates = any(name.endswith("Config()") and ("GRPO" in name or "RLOO" in name) for name in settings)
    return creates or any(name in settings for name in GENERATION_SETTINGS)


def _list_groups(settings: TrainerSettings) -> list[str]:
    """Returns the unread arguments that may contain settings of the trainer, not those of a model or of LoRA."""
    calls = list_unread_arguments(settings, ["GRPO", "RLOO", "TrainingArguments"])
    variables = [name for name in list_unread_arguments(settings) if name.startswith("${")]
    return [name for name in calls if "Trainer(" not in name or "args" not in settings] + variables


def _check_unread_arguments(settings: TrainerSettings) -> list[SettingsIssue]:
    missing = [name for name in CHECKED_SETTINGS if name not in settings]
    if not missing or not (groups := _list_groups(settings)):
        return []
    lost = f"They may be in {groups[0]}. Give them as key=value to check them."
    return [build_undetermined_issue(", ".join(missing), lost, (CALLBACK,))]


def _check_written(settings: TrainerSettings, version: tuple[int, ...]) -> list[SettingsIssue]:
    if version and version < FIRST_PARQUET_VERSION:
        lost = "Completions are printed; TRL writes them to a file from 0.28 on."
        return [SettingsIssue(f"TRL {'.'.join(map(str, version))}", lost, ("pip install -U trl", CALLBACK))]
    value, lost = settings.get("log_completions"), "Completions are written nowhere."
    fix = ("log_completions=True", CALLBACK)
    if is_unresolved(value):
        return [build_undetermined_issue(f"log_completions={value}", f"If it is false: {lost}", fix)]
    if value or STATE_KEY in settings or ("log_completions" not in settings and _list_groups(settings)):
        return []
    return [SettingsIssue("log_completions is not set", lost, fix)]


def _check_logging_interval(settings: TrainerSettings) -> list[SettingsIssue]:
    strategy = _read_strategy(settings, "logging_strategy", "steps")
    lines = ("logging_strategy='steps'", "logging_steps=1", CALLBACK)
    if is_unresolved(strategy):
        lost = "If it is not steps: files are written when the trainer logs."
        return [build_undetermined_issue(f"logging_strategy={strategy}", lost, lines)]
    if strategy in ("no", "epoch"):
        return [SettingsIssue(f"logging_strategy={strategy}", "Files are written when the trainer logs.", lines)]
    groups = _list_groups(settings)
    if "logging_steps" not in settings and groups:
        return []
    estimate = estimate_generations_per_file(settings, some_unread=bool(groups))
    lost = "A file has the last generation before the trainer logs: earlier ones are lost."
    if estimate.highest <= 1:
        return []
    if estimate.lowest <= 1:
        unknown = ", ".join(estimate.unknown)
        return [build_undetermined_issue(unknown, f"If the trainer logs less often than it generates: {lost}", lines)]
    if estimate.per_step > 1:
        title = f"each step generates {estimate.per_step:g} times: gradient_accumulation_steps is above "
        size = "steps_per_generation" if settings.get("steps_per_generation") else "what generation_batch_size fills"
        return [SettingsIssue(f"{title}{size}", lost, (CALLBACK,))]
    every = settings.get("logging_steps", LOGGING_STEPS)
    title = f"logging_steps={every}" if "logging_steps" in settings else f"logging_steps is not set, so it is {every}"
    return [SettingsIssue(title, lost, lines)]


def _read_strategy(settings: TrainerSettings, name: str, default: str) -> str:
    """Returns a strategy as text, also that of the source `IntervalStrategy.STEPS`."""
    value = settings.get(name) or default
    match = re.fullmatch(r"(?:\w+\.)*(?:Interval|Eval|Logging)Strategy\.(\w+)", str(value))
    return match.group(1).lower() if match else value if isinstance(value, str) else str(value).lower()


def _check_evals(settings: TrainerSettings) -> list[SettingsIssue]:
    history = settings.get(STATE_KEY)
    has_evals = isinstance(history, list) and any(str(key).startswith("eval_") for row in history for key in row)
    strategy = _read_strategy(settings, "eval_strategy", "no")
    if not has_evals and strategy == "no":
        return []
    title = "evals of this run" if has_evals else f"eval_strategy={strategy}"
    lost = "An eval overwrites the train file of its step, and only the last generation batch of its rows is stored."
    if not has_evals and is_unresolved(strategy):
        return [build_undetermined_issue(title, f"If it is not no: {lost}", (CALLBACK,))]
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
