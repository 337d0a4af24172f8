"""Checks which settings of verl would lose samples: one issue each, with the overrides that fix it.

Source: verl 0.9.1: `trainer/config/`, `utils/tracking.py` (FileLogger, ValidationGenerationsLogger), `utils/skip/`.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping, Sequence

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings

ROLLOUT_DIR, VAL_DIR = "trainer.rollout_data_dir", "trainer.validation_data_dir"
FOLDERS = {
    ROLLOUT_DIR: "/shared/rl/${trainer.project_name}/${trainer.experiment_name}/rollout",
    VAL_DIR: "/shared/rl/${trainer.project_name}/${trainer.experiment_name}/val",
}
RAY_ENV_PREFIX = "+ray_kwargs.ray_init.runtime_env.env_vars."
# The logger creates the folders below its ROOT, but not those of VERL_FILE_LOGGER_PATH: there the run ends instead.
FILE_LOGGER_ROOT = f"{RAY_ENV_PREFIX}VERL_FILE_LOGGER_ROOT=/shared/rl"
PLUGIN_LOGGER = "rolloutdeck"  # the logger of Rolloutdeck's plug-in
DEFAULT_LOGGERS = ("console", "wandb")
# Loggers that show the samples of trainer.log_val_generations; console, file and rl_insight do not get them.
SHOWS_GENERATIONS = ("wandb", "swanlab", "mlflow", "trackio", "clearml", "tensorboard", "vemlp_wandb")
# The skip role that each trainer reads; the others are ignored without a message.
SKIP_ROLE_BY_TRAINER = {"V1": "rollout_tq", "V0": "rollout", "fully async": "async_rollout", "one step off": ""}


def format_override(setting: str, value: object) -> str:
    """Returns one Hydra override, quoted for a shell."""
    return shlex.quote(f"{setting}={value}")


def detect_verl_trainer(settings: TrainerSettings, *, complete: bool) -> str:
    """Returns `V1`, `V0`, `fully async` or `one step off`, by the sections that only this trainer's configuration has.

    A complete configuration with neither `trainer.use_v1` nor the V1 role is from verl 0.8 or older, which had V0 only.
    """
    if any(name.startswith("async_training.") for name in settings):
        return "fully async"
    if any(name.startswith("rollout.") for name in settings):
        return "one step off"
    old = complete and not any(name.startswith("skip.rollout_tq.") for name in settings)
    return "V1" if settings.get("trainer.use_v1", not old) else "V0"


def list_loggers(settings: TrainerSettings) -> list[str]:
    loggers = settings.get("trainer.logger", DEFAULT_LOGGERS)
    return [loggers] if isinstance(loggers, str) else [str(name) for name in loggers or ()]


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues. `settings`: dotted name -> value. `complete`: False if missing settings have verl's
    default."""
    trainer = detect_verl_trainer(settings, complete=complete)
    if PLUGIN_LOGGER in list_loggers(settings):  # it records metrics and generations, whatever verl writes
        return [*_check_shared_folder(settings), *_check_skip_role(settings, trainer)]
    return [
        *_check_folders(settings),
        *_check_metrics_file(settings),
        *_check_val_generations(settings, trainer),
        *_check_skip_role(settings, trainer),
    ]


def _get_number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


def _validates(settings: TrainerSettings) -> bool:
    return (
        _get_number(settings.get("trainer.test_freq", -1)) > 0
        or settings.get("trainer.val_before_train", True) is not False
    )


def _check_shared_folder(settings: TrainerSettings) -> list[SettingsIssue]:
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


def _check_folders(settings: TrainerSettings) -> list[SettingsIssue]:
    if same := _check_shared_folder(settings):
        return same
    rollout, val = settings.get(ROLLOUT_DIR) or "", settings.get(VAL_DIR) or ""
    findings: list[SettingsIssue | None] = []
    if not rollout:
        findings.append(_build_unset_issue(ROLLOUT_DIR, "Training generations are written nowhere."))
    if not val and _validates(settings):
        findings.append(_build_unset_issue(VAL_DIR, "Validation generations are written nowhere."))
    findings += [_check_relative(name, path) for name, path in ((ROLLOUT_DIR, rollout), (VAL_DIR, val)) if path]
    return [finding for finding in findings if finding]


def _build_unset_issue(name: str, lost: str) -> SettingsIssue:
    return SettingsIssue(f"{name} is not set", lost, (format_override(name, FOLDERS[name]),))


def _check_relative(name: str, path: object) -> SettingsIssue | None:
    if str(path).startswith(("/", "~", "$")):
        return None
    return SettingsIssue(
        f"{name}={path} is a relative path: it counts from the working directory of a Ray actor, on its node",
        fix=(format_override(name, FOLDERS[name]),),
    )


def _check_metrics_file(settings: TrainerSettings) -> list[SettingsIssue]:
    names = list_loggers(settings)
    if "file" not in names:
        listed = "[" + ",".join(f'"{name}"' for name in [*names, "file"]) + "]"
        return [
            SettingsIssue(
                f"trainer.logger={names} has no `file`",
                "No logger writes the metrics to a file that can be read: no curves with the samples.",
                (format_override("trainer.logger", listed), shlex.quote(FILE_LOGGER_ROOT)),
            )
        ]
    env = RAY_ENV_PREFIX.lstrip("+")
    if settings.get(f"{env}VERL_FILE_LOGGER_PATH") or settings.get(f"{env}VERL_FILE_LOGGER_ROOT"):
        return []
    return [
        SettingsIssue(
            "neither VERL_FILE_LOGGER_PATH nor VERL_FILE_LOGGER_ROOT is in Ray's environment: unless the shell sets "
            "one, the metrics file is in the working directory of a Ray actor, temporary for a submitted job",
            fix=(shlex.quote(FILE_LOGGER_ROOT),),
        )
    ]


def _check_val_generations(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    count = _get_number(settings.get("trainer.log_val_generations", 0))
    if count <= 0:
        return []
    names = list_loggers(settings)
    supported = [name for name in names if name in SHOWS_GENERATIONS]
    fix = (
        format_override("trainer.log_val_generations", 0),
        *(() if settings.get(VAL_DIR) else (format_override(VAL_DIR, FOLDERS[VAL_DIR]),)),
    )
    if not supported:
        lost = (
            f"The {count:g} generations of each validation reach no one: {', '.join(names) or 'no logger'} drops them."
        )
        return [SettingsIssue(f"trainer.log_val_generations={count:g} has no logger that shows them", lost, fix)]
    if trainer != "fully async":
        return []
    failing = [name for name in supported if name in ("trackio", "swanlab")]
    lost = (
        f"The rollouter's process has no session of {failing[0]}: logging there raises and ends the run."
        if failing
        else f"The rollouter's process has no session of {supported[0]}: the table is dropped."
    )
    return [SettingsIssue(f"trainer.log_val_generations={count:g} in a fully async run", lost, fix)]


def _check_skip_role(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    trainer_role = SKIP_ROLE_BY_TRAINER[trainer]
    enabled = [
        role for role in ("rollout", "rollout_tq", "async_rollout") if settings.get(f"skip.{role}.enable") is True
    ]
    findings = []
    for role in enabled:
        if role == trainer_role:
            continue
        reads = f"reads skip.{trainer_role} only" if trainer_role else "reads no skip role at all"
        paste = [
            format_override(f"skip.{role}.enable", False),
            *_format_role_settings(settings, role, trainer_role if trainer_role not in enabled else ""),
        ]
        findings.append(
            SettingsIssue(
                f"skip.{role} is enabled, but the {trainer} trainer {reads}",
                "Steps are neither stored nor replayed, without a message.",
                tuple(paste),
            )
        )
    return findings


def _format_role_settings(settings: TrainerSettings, role: str, trainer_role: str) -> list[str]:
    if not trainer_role:
        return []
    lines = [format_override(f"skip.{trainer_role}.enable", True)]
    for name in ("dump_dir", "steps", "action"):
        value = settings.get(f"skip.{role}.{name}")
        if value is not None:
            lines.append(format_override(f"skip.{trainer_role}.{name}", _format_hydra_value(value)))
    return lines


def _format_hydra_value(value: object) -> str:
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
    skip_settings = {"enable": True, "dump_dir": folder, "steps": "[1,2,3]"}
    return [
        format_override(f"skip.{SKIP_ROLE_BY_TRAINER['V1']}.{name}", value) for name, value in skip_settings.items()
    ]


def replay_lines() -> list[str]:
    return [format_override("trainer.logger", f'["console","{PLUGIN_LOGGER}"]')]


def environment_lines(values: Mapping[str, str]) -> list[str]:
    """Returns the lines that pass environment variables to code in Ray's workers.

    A token is passed as the name of a file, so that no configuration or log shows it.
    """
    return [shlex.quote(f"{RAY_ENV_PREFIX}{name}={value}") for name, value in values.items()]
