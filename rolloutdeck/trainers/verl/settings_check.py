"""Checks which settings of verl would lose samples: one issue each, with the overrides that fix it.

Source: verl 0.9.1: `trainer/config/`, `utils/tracking.py` (FileLogger, ValidationGenerationsLogger), `utils/skip/`.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings, build_undetermined_issue
from rolloutdeck.trainer_config import is_unresolved, may_be_empty, parse_scalar

ROLLOUT_DIR, VAL_DIR = "trainer.rollout_data_dir", "trainer.validation_data_dir"
RUN_FOLDER = "/shared/rl/${trainer.project_name}/${trainer.experiment_name}"
FOLDERS = {ROLLOUT_DIR: f"{RUN_FOLDER}/rollout", VAL_DIR: f"{RUN_FOLDER}/val"}
RAY_ENV_PREFIX = "+ray_kwargs.ray_init.runtime_env.env_vars."
# The logger creates the folders below its ROOT, but not those of VERL_FILE_LOGGER_PATH: there the run ends instead.
FILE_LOGGER_ROOT = f"{RAY_ENV_PREFIX}VERL_FILE_LOGGER_ROOT=/shared/rl"
PLUGIN_LOGGER = "rolloutdeck"  # the logger of Rolloutdeck's plug-in
DEFAULT_LOGGERS = ("console", "wandb")
# Loggers that show the samples of trainer.log_val_generations; console, file and rl_insight do not get them.
SHOWS_GENERATIONS = ("wandb", "swanlab", "mlflow", "trackio", "clearml", "tensorboard", "vemlp_wandb")
# Of these, the loggers that write by themselves in a process where no logger was started, and those that fail there.
WRITES_ANYWHERE, FAILS_ELSEWHERE = ("tensorboard", "mlflow"), ("trackio", "swanlab")
SKIP_ROLES = ("rollout", "rollout_tq", "async_rollout")
SKIP_STEPS = "[1,2,3]"  # an example; verl's default is no step
# Groups of settings that only the configuration of supervised fine-tuning has, which generates nothing.
SFT_GROUPS = ("checkpoint", "engine", "model", "optim")
# The skip role that each trainer reads; the others are ignored without a message.
SKIP_ROLE_BY_TRAINER = {"V1": "rollout_tq", "V0": "rollout", "fully async": "async_rollout", "one step off": ""}

_PLAIN = re.compile(r"[A-Za-z0-9_./@%+:-]+\Z")
_ESCAPED_PART = re.compile(r'(\\*)("|\Z)')


def format_override(setting: str, value: object) -> str:
    """Returns one Hydra override, quoted for a shell."""
    return shlex.quote(f"{setting}={value}")


def quote_hydra_value(value: object) -> str:
    """Returns a value for Hydra's grammar, in quotes if Hydra would parse the text differently or not at all."""
    text = str(value)
    if not isinstance(value, str) or (_PLAIN.match(text) and isinstance(parse_scalar(text), str)):
        return text
    escaped = _ESCAPED_PART.sub(lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return '"' + escaped.replace("${", "\\${") + '"'


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
    """Returns the issues. `complete`: False if missing settings have verl's defaults."""
    if _is_fine_tuning(settings):
        return [SettingsIssue("supervised fine-tuning generates nothing: it has metrics and no samples")]
    if settings.get("data.output_path"):
        return [SettingsIssue("this run generates without training: its only output is the file data.output_path")]
    trainer = detect_verl_trainer(settings, complete=complete)
    if PLUGIN_LOGGER in list_loggers(settings):  # it records metrics and generations, whatever verl writes
        return [*_check_shared_folder(settings), *_check_skip_role(settings, trainer)]
    issues = [*_check_folders(settings), *_check_metrics_file(settings)]
    return [*issues, *_check_val_generations(settings, trainer), *_check_skip_role(settings, trainer)]


def _is_fine_tuning(settings: TrainerSettings) -> bool:
    groups = {name.partition(".")[0] for name in settings}
    return any(group in groups for group in SFT_GROUPS) and "actor_rollout_ref" not in groups


def _get_number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


def _validates(settings: TrainerSettings) -> bool:
    validates_first = settings.get("trainer.val_before_train", True)
    is_first = validates_first is not False and not is_unresolved(validates_first)
    return is_first or _get_number(settings.get("trainer.test_freq", -1)) > 0


def _find_unknown_validation(settings: TrainerSettings) -> str:
    """Returns the setting, `name=value`, that decides whether the run validates and has no known value; else ""."""
    names = ("trainer.val_before_train", "trainer.test_freq")
    unresolved = [f"{name}={settings[name]}" for name in names if is_unresolved(settings.get(name))]
    return unresolved[0] if unresolved and not _validates(settings) else ""


def _check_shared_folder(settings: TrainerSettings) -> list[SettingsIssue]:
    rollout, val = settings.get(ROLLOUT_DIR) or "", settings.get(VAL_DIR) or ""
    if not rollout or not val or posixpath.normpath(str(rollout)) != posixpath.normpath(str(val)):
        return []
    lost = "Both write {step}.jsonl there, so at each validated step one overwrites the other."
    fix = format_override(VAL_DIR, f"{posixpath.normpath(str(val))}_val")
    return [SettingsIssue(f"{ROLLOUT_DIR} and {VAL_DIR} are the same folder", lost, (fix,))]


def _check_folders(settings: TrainerSettings) -> list[SettingsIssue]:
    if same := _check_shared_folder(settings):
        return same
    rollout, val = settings.get(ROLLOUT_DIR) or "", settings.get(VAL_DIR) or ""
    findings = []
    for name, path, split in ((ROLLOUT_DIR, rollout, "Training"), (VAL_DIR, val, "Validation")):
        fix = (format_override(name, FOLDERS[name]),)
        lost = f"{split} generations are written nowhere."
        if not path and (split == "Training" or _validates(settings)):
            findings.append(SettingsIssue(f"{name} is not set", lost, fix))
        elif not path and (setting := _find_unknown_validation(settings)):
            findings.append(build_undetermined_issue(setting, f"If the run validates: {name} is not set. {lost}", fix))
        elif may_be_empty(path):
            findings.append(build_undetermined_issue(f"{name}={path}", f"If it is empty: {lost}", fix))
        if path and not str(path).startswith(("/", "$")):
            reason = " (verl does not expand ~)" if str(path).startswith("~") else ""
            rule = f"is a relative path{reason}: it counts from the working directory of a Ray actor, on its node"
            findings.append(SettingsIssue(f"{name}={path} {rule}", fix=fix))
    return findings


def _check_metrics_file(settings: TrainerSettings) -> list[SettingsIssue]:
    names = list_loggers(settings)
    if "file" not in names and is_unresolved(settings.get("trainer.logger")):
        title = f"trainer.logger={settings['trainer.logger']}"
        lost = "If it has no `file`: no logger writes the metrics to a file that can be read."
        return [build_undetermined_issue(title, lost, (shlex.quote(FILE_LOGGER_ROOT),))]
    if "file" not in names:
        listed = "[" + ",".join(f'"{name}"' for name in [*names, "file"]) + "]"
        lost = "No logger writes the metrics to a file that can be read: no curves with the samples."
        fix = (format_override("trainer.logger", listed), shlex.quote(FILE_LOGGER_ROOT))
        return [SettingsIssue(f"trainer.logger={names} has no `file`", lost, fix)]
    env = RAY_ENV_PREFIX.lstrip("+")
    if settings.get(f"{env}VERL_FILE_LOGGER_PATH") or settings.get(f"{env}VERL_FILE_LOGGER_ROOT"):
        return []
    title = (
        "neither VERL_FILE_LOGGER_PATH nor VERL_FILE_LOGGER_ROOT is in Ray's environment: unless the shell sets "
        "one, the metrics file is in the working directory of a Ray actor, temporary for a submitted job"
    )
    return [SettingsIssue(title, fix=(shlex.quote(FILE_LOGGER_ROOT),))]


def _check_val_generations(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    value, loggers = settings.get("trainer.log_val_generations", 0), settings.get("trainer.logger")
    unknown = next((setting for setting in (value, loggers) if is_unresolved(setting)), None)
    if unknown is None:
        return _find_lost_val_generations(settings, trainer, _get_number(value))
    count = 1 if is_unresolved(value) else _get_number(value)
    if not (issues := _find_lost_val_generations(settings, trainer, count)):
        return []
    name = "trainer.log_val_generations" if is_unresolved(value) else "trainer.logger"
    lost = "If no logger shows them, the generations of validations that it logs reach no one."
    return [build_undetermined_issue(f"{name}={unknown}", lost, issues[0].fix)]


def _find_lost_val_generations(settings: TrainerSettings, trainer: str, count: float) -> list[SettingsIssue]:
    if count <= 0:
        return []
    names = list_loggers(settings)
    supported = [name for name in names if name in SHOWS_GENERATIONS]
    fixes = {"trainer.log_val_generations": 0, **({} if settings.get(VAL_DIR) else {VAL_DIR: FOLDERS[VAL_DIR]})}
    fix = tuple(format_override(name, value) for name, value in fixes.items())
    title = f"trainer.log_val_generations={count:g}"
    if not supported:
        loggers = ", ".join(names) or "no logger"
        lost = f"The {count:g} generations of each validation reach no one: {loggers} drops them."
        return [SettingsIssue(f"{title} has no logger that shows them", lost, fix)]
    if trainer != "fully async":
        return []
    failing = next((name for name in supported if name in FAILS_ELSEWHERE), "")
    if not failing and any(name in WRITES_ANYWHERE for name in supported):
        return []
    effect = "logging there raises and ends the run" if failing else "the table is dropped"
    lost = f"The rollouter's process has no session of {failing or supported[0]}: {effect}."
    return [SettingsIssue(f"{title} in a fully async run", lost, fix)]


def _check_skip_role(settings: TrainerSettings, trainer: str) -> list[SettingsIssue]:
    trainer_role = SKIP_ROLE_BY_TRAINER[trainer]
    enabled = [role for role in SKIP_ROLES if settings.get(f"skip.{role}.enable") is True]
    reads = f"reads skip.{trainer_role} only" if trainer_role else "reads no skip role at all"
    lost = "Steps are neither stored nor replayed, without a message."
    new_role = "" if trainer_role in enabled else trainer_role
    issues = _check_unknown_skip(settings)
    for role in enabled:
        if role == trainer_role or (trainer in ("V0", "V1") and is_unresolved(settings.get("trainer.use_v1"))):
            issues += _check_skip_steps(settings, role)
        else:
            fix = (format_override(f"skip.{role}.enable", False), *_format_role_settings(settings, role, new_role))
            issues.append(SettingsIssue(f"skip.{role} is enabled, but the {trainer} trainer {reads}", lost, fix))
    return issues


def _check_unknown_skip(settings: TrainerSettings) -> list[SettingsIssue]:
    """Returns the issues of settings that have no known value and decide which role is read and whether it is on."""
    switches = {role: settings.get(f"skip.{role}.enable") for role in SKIP_ROLES}
    lost = "Steps are stored and replayed only if it is true for the role that the trainer reads, and has steps."
    issues = [
        build_undetermined_issue(f"skip.{role}.enable={value}", lost)
        for role, value in switches.items()
        if is_unresolved(value)
    ]
    if is_unresolved(settings.get("trainer.use_v1")) and any(value is True for value in switches.values()):
        roles = f"V1 reads skip.{SKIP_ROLE_BY_TRAINER['V1']} only, V0 skip.{SKIP_ROLE_BY_TRAINER['V0']} only."
        issues.append(build_undetermined_issue(f"trainer.use_v1={settings['trainer.use_v1']}", roles))
    return issues


def _check_skip_steps(settings: TrainerSettings, role: str) -> list[SettingsIssue]:
    name = f"skip.{role}.steps"
    steps, fix = settings.get(name), (format_override(name, SKIP_STEPS),)
    lost = "Only listed steps are stored or replayed, and verl's default is an empty list."
    if is_unresolved(steps):
        return [build_undetermined_issue(f"{name}={steps}", f"If it is empty: {lost}", fix)]
    return [] if steps else [SettingsIssue(f"skip.{role} is enabled without steps", lost, fix)]


def _format_role_settings(settings: TrainerSettings, role: str, trainer_role: str) -> list[str]:
    if not trainer_role:
        return []
    lines = [format_override(f"skip.{trainer_role}.enable", True)]
    for name in ("dump_dir", "steps", "action"):
        value = settings.get(f"skip.{role}.{name}")
        if isinstance(value, Sequence) and not isinstance(value, str):
            value = "[" + ",".join(map(str, value)) + "]"
        if not value and name == "steps":
            value = SKIP_STEPS
        if value is not None:
            lines.append(format_override(f"skip.{trainer_role}.{name}", value))
    return lines


def recommended_lines() -> list[str]:
    overrides = {**FOLDERS, "trainer.logger": '["console","file"]'}
    return [*(format_override(name, value) for name, value in overrides.items()), shlex.quote(FILE_LOGGER_ROOT)]


def store_lines() -> list[str]:
    role = SKIP_ROLE_BY_TRAINER["V1"]
    skip_settings = {"enable": True, "dump_dir": f"{RUN_FOLDER}/skip", "steps": SKIP_STEPS}
    return [format_override(f"skip.{role}.{name}", value) for name, value in skip_settings.items()]


def replay_lines() -> list[str]:
    return [format_override("trainer.logger", f'["console","{PLUGIN_LOGGER}"]')]


def environment_lines(values: Mapping[str, str]) -> list[str]:
    """Returns the lines that pass environment variables to code in Ray's workers.

    A token is passed as the name of a file, so that no configuration or log shows it.
    """
    return [format_override(f"{RAY_ENV_PREFIX}{name}", quote_hydra_value(value)) for name, value in values.items()]
