"""Which of slime's arguments would lose samples. Read from slime 624b824a: `slime/utils/arguments.py`,
`observability/rollout_data_utils.py`, `observability/rollout_metrics.py`, `ray/rollout.py`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from string import Formatter
from typing import Any

from rolloutdeck.trainer_api import SettingsIssue
from rolloutdeck.trainers.slime import FORGED_ROLLOUT_FUNCTION

TrainerSettings = Mapping[str, Any]

DETAILS = "--dump-details /shared/rl/PROJECT/RUN"
OURS = "rolloutdeck.trainers.slime."
LOG = f"--custom-rollout-log-function-path {OURS}log_rollout"
LOG_EVAL = f"--custom-eval-rollout-log-function-path {OURS}log_eval"
ALL_SAMPLES = f"--rollout-all-samples-process-path {OURS}all_samples"
ROLLOUT, TRAIN = "save_debug_rollout_data", "save_debug_train_data"
FIELDS = {ROLLOUT: ("rollout_id",), TRAIN: ("rollout_id", "rank")}
GOOD = {ROLLOUT: "{rollout_id}.pt", TRAIN: "{rollout_id}_{rank}.pt"}


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """`settings`: slime's arguments by their names in `args`, as `save_debug_rollout_data`; the others have its
    defaults."""
    return [
        *_dumps(settings),
        *_templates(settings),
        *_evals(settings),
        *_filtered(settings),
        *_other_log_function(settings),
        *_loading(settings),
    ]


def flag(name: str, value: object) -> str:
    """One argument as a shell takes it."""
    return f"--{name.replace('_', '-')} {shlex.quote(str(value))}"


def _ours(settings: TrainerSettings, name: str) -> bool:
    return str(settings.get(name) or "").startswith(OURS)


def _logs(settings: TrainerSettings) -> bool:
    return _ours(settings, "custom_rollout_log_function_path")


def _dumps(settings: TrainerSettings) -> list[SettingsIssue]:
    if settings.get("dump_details"):
        moved = [name for name in FIELDS if settings.get(name)]
        titles = [f"--dump-details takes the place of {flag(name, settings[name])}" for name in moved]
        return [SettingsIssue(f"{title}: nothing is written there, watch the former's folder") for title in titles]
    if settings.get(ROLLOUT):
        return []
    title = "neither --dump-details nor --save-debug-rollout-data is given"
    if _logs(settings):
        return [SettingsIssue(f"{title}: samples are recorded, but no rollout can be pinned", paste=(DETAILS,))]
    return [SettingsIssue(title, "What is generated is written nowhere.", (LOG, DETAILS))]


def _templates(settings: TrainerSettings) -> list[SettingsIssue]:
    if settings.get("dump_details"):
        return []
    named = [(name, str(settings[name])) for name in FIELDS if settings.get(name)]
    if len(named) == 2 and named[0][1] == named[1][1]:
        lost = "slime ends with a ValueError before the first rollout."
        return [
            SettingsIssue("both dumps have one template", lost, (flag(TRAIN, f"{named[1][1]}_train_{GOOD[TRAIN]}"),))
        ]
    return [finding for name, template in named for finding in _template(name, template)]


def _template(name: str, template: str) -> list[SettingsIssue]:
    good = flag(name, f"{template.rpartition('/')[0] or '/shared/rl/PROJECT/RUN'}/{GOOD[name]}")
    fields = _fields(template)
    given = flag(name, template)
    if fields is None or any(field not in FIELDS[name] for field in fields):
        lost = "slime fills in nothing else: the first rollout ends the run with an error."
        allowed = " and ".join(f"{{{field}}}" for field in FIELDS[name])
        return [SettingsIssue(f"{given} has a placeholder other than {allowed}", lost, (good,))]
    if "rollout_id" not in fields:
        lost = "Every rollout writes over the file of the one before" + (
            ", and so do evals." if name == ROLLOUT else "."
        )
        return [SettingsIssue(f"{given} has no {{rollout_id}}", lost, (good,))]
    hints = []
    if name == TRAIN and "rank" not in fields:
        hints.append(
            SettingsIssue(
                f"{given} has no {{rank}}: versions where each rank writes keep the last one's", paste=(good,)
            )
        )
    if not template.startswith(("/", "$")):
        hints.append(SettingsIssue(f"{given} is a relative path: it counts from the working directory of a Ray actor"))
    return hints


def _fields(template: str) -> list[str] | None:
    """The names of a template's placeholders; None where `str.format` can't read it."""
    try:
        return [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return None


def _evals(settings: TrainerSettings) -> list[SettingsIssue]:
    told = settings.get("eval_prompt_data")
    sets = len(told) // 2 if isinstance(told, list) else 0
    if not settings.get("eval_interval") or _ours(settings, "custom_eval_rollout_log_function_path"):
        return []
    if _logs(settings) and not (settings.get(ROLLOUT) or settings.get("dump_details")):
        return [
            SettingsIssue(
                "evals are written nowhere", "The log function of rollouts is not called for evals.", (LOG_EVAL,)
            )
        ]
    title = "the dump of an eval is one list of all its data sets, without their names"
    if sets > 1:
        return [SettingsIssue(title, f"Which of the {sets} data sets a sample is of.", (LOG_EVAL,))]
    return [SettingsIssue(title, paste=(LOG_EVAL,))] if settings.get("eval_config") else []


def _filtered(settings: TrainerSettings) -> list[SettingsIssue]:
    chosen = settings.get("dynamic_sampling_filter_path")
    if not chosen or settings.get("rollout_all_samples_process_path"):
        return []
    lost = "The groups that the filter drops are in no dump; only a function for all samples is given them."
    return [SettingsIssue(flag("dynamic_sampling_filter_path", chosen), lost, (LOG, ALL_SAMPLES))]


def _other_log_function(settings: TrainerSettings) -> list[SettingsIssue]:
    name = "custom_rollout_log_function_path"
    if not settings.get(name) or _logs(settings):
        return []
    return [
        SettingsIssue(
            f"{flag(name, settings[name])}: where it returns True, slime logs no rollout/* and perf/* metrics"
        )
    ]


def _loading(settings: TrainerSettings) -> list[SettingsIssue]:
    return [*_loaded(settings), *_forging(settings)]


def _loaded(settings: TrainerSettings) -> list[SettingsIssue]:
    """Slime's own replay of its dumps, for debugging: the training process alone."""
    loaded = settings.get("load_debug_rollout_data")
    if not loaded:
        return []
    given = flag("load_debug_rollout_data", loaded)
    lost = "Evals are skipped." if settings.get("eval_interval") else ""
    other = (f"--rollout-function-path {FORGED_ROLLOUT_FUNCTION}", _forged(loaded))
    findings = [SettingsIssue(f"{given}: nothing is generated", lost, other if lost else ())]
    if "{rollout_id}" not in str(loaded) and settings.get("num_rollout", 1) != 1:
        findings.append(SettingsIssue(f"{given} has no {{rollout_id}}: one file every time"))
    if _logs(settings):
        findings.append(
            SettingsIssue("log_rollout is called for loaded rollouts as well: this run shows their samples again")
        )
    return findings


def _forging(settings: TrainerSettings) -> list[SettingsIssue]:
    forged = settings.get("load_forge_rollout_data")
    if not forged:
        return []
    if settings.get("rollout_function_path") == FORGED_ROLLOUT_FUNCTION:
        return [SettingsIssue(f"{_forged(forged)}: a rollout without a file of its own is that of rollout 0, again")]
    lost = "Nothing is loaded, and nothing says so: only that rollout function reads it."
    return [
        SettingsIssue(
            f"{_forged(forged)} without its rollout function",
            lost,
            (f"--rollout-function-path {FORGED_ROLLOUT_FUNCTION}",),
        )
    ]


def _forged(template: object) -> str:
    return flag("load_forge_rollout_data", template)


def recommended_lines() -> list[str]:
    return [LOG, LOG_EVAL, ALL_SAMPLES]


def store_lines() -> list[str]:
    return [DETAILS]


def replay_lines() -> list[str]:
    return ["--rollout-function-path rolloutdeck.trainers.slime.generate_rollout"]


def environment_lines(values: Mapping[str, str]) -> list[str]:
    """For `ray job submit`; the rollout manager, where the functions run, is an actor of Ray's."""
    return [f"--runtime-env-json={shlex.quote(json.dumps({'env_vars': dict(values)}))}"]
