"""Which of verl's settings would lose samples, as one finding each with the override lines that mend it.

Read from verl 0.9.1: `trainer/config/`, `utils/tracking.py` (FileLogger, ValidationGenerationsLogger), `utils/skip/`.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue

TrainerSettings = Mapping[str, Any]

ROLLOUT_DIR, VAL_DIR = "trainer.rollout_data_dir", "trainer.validation_data_dir"
FOLDERS = {
    ROLLOUT_DIR: "/shared/rl/${trainer.project_name}/${trainer.experiment_name}/rollout",
    VAL_DIR: "/shared/rl/${trainer.project_name}/${trainer.experiment_name}/val",
}
RAY_ENV_PREFIX = "+ray_kwargs.ray_init.runtime_env.env_vars."
# The logger makes the folders below its ROOT, but not those of VERL_FILE_LOGGER_PATH: there it ends the run instead.
FILE_LOGGER_ROOT = f"{RAY_ENV_PREFIX}VERL_FILE_LOGGER_ROOT=/shared/rl"
PLUGIN = "rolloutdeck"  # the logger of our plug-in
DEFAULT_LOGGERS = ("console", "wandb")
# Loggers that show what trainer.log_val_generations hands them; console, file and rl_insight get nothing.
SHOWS_GENERATIONS = ("wandb", "swanlab", "mlflow", "trackio", "clearml", "tensorboard", "vemlp_wandb")
# The skip role that each trainer reads; the others are ignored without a word.
SKIP_ROLE_BY_TRAINER = {"V1": "rollout_tq", "V0": "rollout", "fully async": "async_rollout", "one step off": ""}


def format_override(setting: str, value: object) -> str:
    """One Hydra override as a shell takes it."""
    return shlex.quote(f"{setting}={value}")


def detect_verl_trainer(settings: TrainerSettings, *, complete: bool) -> str:
    """`V1`, `V0`, `fully async` or `one step off`: by the sections only that trainer's configuration has.

    A whole configuration with neither `trainer.use_v1` nor the V1 role is from verl 0.8 or older, which had V0 only.
    """
    if any(name.startswith("async_training.") for name in settings):
        return "fully async"
    if any(name.startswith("rollout.") for name in settings):
        return "one step off"
    old = complete and not any(name.startswith("skip.rollout_tq.") for name in settings)
    return "V1" if settings.get("trainer.use_v1", not old) else "V0"


def loggers(settings: TrainerSettings) -> list[str]:
    found = settings.get("trainer.logger", DEFAULT_LOGGERS)
    return [found] if isinstance(found, str) else [str(name) for name in found or ()]


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """`settings`: dotted name -> value. `complete`: False when what is not there has verl's default."""
    trainer = detect_verl_trainer(settings, complete=complete)
    if PLUGIN in loggers(settings):  # it takes metrics and generations whatever is written
        return [*_one_folder(settings), *_skip_role(settings, trainer)]
    return [
        *_folders(settings),
        *_metrics_file(settings),
        *_val_generations(settings, trainer),
        *_skip_role(settings, trainer),
    ]


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


def _validates(settings: TrainerSettings) -> bool:
    return (
        _number(settings.get("trainer.test_freq", -1)) > 0
        or settings.get("trainer.val_before_train", True) is not False
    )


def _one_folder(settings: TrainerSettings) -> list[SettingsIssue]:
    rollout, val = settings.get(ROLLOUT_DIR) or "", settings.get(VAL_DIR) or ""
    if not rollout or not val or posixpath.normpath(str(rollout)) != posixpath.normpath(str(val)):
        return []
    return [
        SettingsIssue(
            f"{ROLLOUT_DIR} and {VAL_DIR} are the same folder",
            "Both write {step}.jsonl there, so at each validated step one overwrites the other.",
            (format_override(VAL_DIR, posixpath.normpath(str(val)) + "_val"),),
        )
    ]


def _folders(settings: TrainerSettings) -> list[SettingsIssue]:
    if same := _one_folder(settings):
        return same
    rollout, val = settings.get(ROLLOUT_DIR) or "", settings.get(VAL_DIR) or ""
    findings: list[SettingsIssue | None] = []
    if not rollout:
        findings.append(_unset(ROLLOUT_DIR, "Training generations are written nowhere."))
    if not val and _validates(settings):
        findings.append(_unset(VAL_DIR, "Validation generations are written nowhere."))
    findings += [_relative(name, path) for name, path in ((ROLLOUT_DIR, rollout), (VAL_DIR, val)) if path]
    return [finding for finding in findings if finding]


def _unset(name: str, lost: str) -> SettingsIssue:
    return SettingsIssue(f"{name} is not set", lost, (format_override(name, FOLDERS[name]),))


def _relative(name: str, path: object) -> SettingsIssue | None:
    if str(path).startswith(("/", "~", "$")):
        return None
    return SettingsIssue(
        f"{name}={path} is a relative path: it counts from the working directory of a Ray actor, on its node",
        paste=(format_override(name, FOLDERS[name]),),
    )


def _metrics_file(settings: TrainerSettings) -> list[SettingsIssue]:
    names = loggers(settings)
    if "file" not in names:
        listed = "[" + ",".join(f'"{name}"' for name in [*names, "file"]) + "]"
        return [
            SettingsIssue(
                f"trainer.logger={names} has no `file`",
                "No logger keeps the metrics where they can be read: no curves beside the samples.",
                (format_override("trainer.logger", listed), shlex.quote(FILE_LOGGER_ROOT)),
            )
        ]
    env = RAY_ENV_PREFIX.lstrip("+")
    if settings.get(f"{env}VERL_FILE_LOGGER_PATH") or settings.get(f"{env}VERL_FILE_LOGGER_ROOT"):
        return []
    return [
        SettingsIssue(
            "neither VERL_FILE_LOGGER_PATH nor VERL_FILE_LOGGER_ROOT is in Ray's environment: unless the shell sets "
            "one, the metrics file lies in the working directory of a Ray actor, temporary for a submitted job",
            paste=(shlex.quote(FILE_LOGGER_ROOT),),
        )
    ]


def _val_generations(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    count = _number(settings.get("trainer.log_val_generations", 0))
    if count <= 0:
        return []
    names = loggers(settings)
    showing = [name for name in names if name in SHOWS_GENERATIONS]
    off = (
        format_override("trainer.log_val_generations", 0),
        *(() if settings.get(VAL_DIR) else (format_override(VAL_DIR, FOLDERS[VAL_DIR]),)),
    )
    if not showing:
        lost = (
            f"The {count:g} generations of each validation reach no one: {', '.join(names) or 'no logger'} drops them."
        )
        return [SettingsIssue(f"trainer.log_val_generations={count:g} has no logger that shows them", lost, off)]
    if trainer != "fully async":
        return []
    raising = [name for name in showing if name in ("trackio", "swanlab")]
    lost = (
        f"The rollouter's process has no session of {raising[0]}: logging there raises and ends the run."
        if raising
        else f"The rollouter's process has no session of {showing[0]}: the table is dropped."
    )
    return [SettingsIssue(f"trainer.log_val_generations={count:g} in a fully async run", lost, off)]


def _skip_role(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    right = SKIP_ROLE_BY_TRAINER[trainer]
    enabled = [
        role for role in ("rollout", "rollout_tq", "async_rollout") if settings.get(f"skip.{role}.enable") is True
    ]
    findings = []
    for role in enabled:
        if role == right:
            continue
        reads = f"reads skip.{right} only" if right else "reads no skip role at all"
        paste = [
            format_override(f"skip.{role}.enable", False),
            *_moved(settings, role, right if right not in enabled else ""),
        ]
        findings.append(
            SettingsIssue(
                f"skip.{role} is enabled, but the {trainer} trainer {reads}",
                "Steps are neither kept nor replayed, and nothing says so.",
                tuple(paste),
            )
        )
    return findings


def _moved(settings: TrainerSettings, role: str, right: str) -> list[str]:
    if not right:
        return []
    lines = [format_override(f"skip.{right}.enable", True)]
    for name in ("dump_dir", "steps", "action"):
        value = settings.get(f"skip.{role}.{name}")
        if value is not None:
            lines.append(format_override(f"skip.{right}.{name}", _hydra(value)))
    return lines


def _hydra(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(str(item) for item in value) + "]"
    return str(value)


def recommended_lines() -> list[str]:
    return [
        *(format_override(name, folder) for name, folder in FOLDERS.items()),
        format_override("trainer.logger", '["console","file"]'),
        shlex.quote(FILE_LOGGER_ROOT),
    ]


def store_lines() -> list[str]:
    folder = "/shared/rl/${trainer.project_name}/${trainer.experiment_name}/skip"
    kept = {"enable": True, "dump_dir": folder, "steps": "[1,2,3]"}
    return [format_override(f"skip.{SKIP_ROLE_BY_TRAINER['V1']}.{name}", value) for name, value in kept.items()]


def replay_lines() -> list[str]:
    return [format_override("trainer.logger", f'["console","{PLUGIN}"]')]


def environment_lines(values: Mapping[str, str]) -> list[str]:
    """The lines by which code inside Ray's workers learns of the server. A token travels as a file's name, so that no
    configuration or log shows it."""
    return [shlex.quote(f"{RAY_ENV_PREFIX}{name}={value}") for name, value in values.items()]
