"""Checks which of slime's arguments would lose samples. Source: slime 624b824a: `slime/utils/arguments.py`,
`observability/rollout_data_utils.py`, `observability/rollout_metrics.py`, `ray/rollout.py`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from string import Formatter

from rolloutdeck.trainer_api import SettingsIssue, TrainerSettings, build_undetermined_issue
from rolloutdeck.trainer_config import is_unresolved, list_unread_arguments, may_be_empty
from rolloutdeck.trainers.slime import FORGED_ROLLOUT_FUNCTION

DETAILS = "--dump-details /shared/rl/PROJECT/RUN"
FUNCTION_PREFIX = "rolloutdeck.trainers.slime."
LOG = f"--custom-rollout-log-function-path {FUNCTION_PREFIX}log_rollout"
LOG_EVAL = f"--custom-eval-rollout-log-function-path {FUNCTION_PREFIX}log_eval"
ALL_SAMPLES = f"--rollout-all-samples-process-path {FUNCTION_PREFIX}all_samples"
FORGED_FUNCTION = f"--rollout-function-path {FORGED_ROLLOUT_FUNCTION}"
FORGED_DATA = "load_forge_rollout_data"
ROLLOUT, TRAIN = "save_debug_rollout_data", "save_debug_train_data"
TEMPLATE_FIELDS = {ROLLOUT: ("rollout_id",), TRAIN: ("rollout_id", "rank")}
_SHELL_REFERENCE = re.compile(r"\$\{[^{}]*\}|\$\([^()]*\)|\$\w+")
GOOD_TEMPLATES = {ROLLOUT: "{rollout_id}.pt", TRAIN: "{rollout_id}_{rank}.pt"}


def check_settings(settings: TrainerSettings, *, complete: bool) -> list[SettingsIssue]:
    """Returns the issues of slime's arguments, by their names in `args`. Missing ones have slime's defaults."""
    if _is_fine_tuning(settings):
        return [SettingsIssue("supervised fine-tuning generates nothing: a rollout is a batch of the data set")]
    issues = [*_check_dumps(settings), *_check_templates(settings), *_check_evals(settings), *_check_filter(settings)]
    issues += _check_other_log_function(settings)
    return [*issues, *_check_debug_load(settings), *_check_forge_load(settings)]


def format_argument(name: str, value: object) -> str:
    """Returns one argument, quoted for a shell."""
    return f"--{name.replace('_', '-')} {shlex.quote(str(value))}"


def _is_fine_tuning(settings: TrainerSettings) -> bool:
    path = str(settings.get("rollout_function_path") or "")
    return settings.get("loss_type") == "sft_loss" or path.endswith(".sft_rollout.generate_rollout")


def _is_set_to_ours(settings: TrainerSettings, name: str) -> bool:
    return str(settings.get(name) or "").startswith(FUNCTION_PREFIX)


def _has_log_function(settings: TrainerSettings) -> bool:
    return _is_set_to_ours(settings, "custom_rollout_log_function_path")


def _check_dumps(settings: TrainerSettings) -> list[SettingsIssue]:
    if may_be_empty(value := settings.get("dump_details") or settings.get(ROLLOUT)) and not _has_log_function(settings):
        argument = format_argument("dump_details" if settings.get("dump_details") else ROLLOUT, value)
        lost = "If it is empty, what is generated is written nowhere."
        return [build_undetermined_issue(argument, lost, (LOG, DETAILS))]
    if settings.get("dump_details"):
        ignored = [name for name in TEMPLATE_FIELDS if settings.get(name)]
        titles = [f"--dump-details takes the place of {format_argument(name, settings[name])}" for name in ignored]
        return [SettingsIssue(f"{title}: nothing is written there, watch the former's folder") for title in titles]
    if settings.get(ROLLOUT):
        return []
    title = "neither --dump-details nor --save-debug-rollout-data is given"
    if not _has_log_function(settings) and (groups := list_unread_arguments(settings)):
        lost = f"One of them may be in {groups[0]}. Else what is generated is written nowhere."
        return [build_undetermined_issue("--dump-details, --save-debug-rollout-data", lost, (LOG, DETAILS))]
    if _has_log_function(settings):
        return [SettingsIssue(f"{title}: samples are recorded, but no rollout can be pinned", fix=(DETAILS,))]
    return [SettingsIssue(title, "What is generated is written nowhere.", (LOG, DETAILS))]


def _check_templates(settings: TrainerSettings) -> list[SettingsIssue]:
    if settings.get("dump_details"):
        return []
    templates = [(name, str(settings[name])) for name in TEMPLATE_FIELDS if settings.get(name)]
    if len(templates) == 2 and templates[0][1] == templates[1][1]:
        lost = "slime ends with a ValueError before the first rollout."
        fix = format_argument(TRAIN, f"{templates[1][1]}_train_{GOOD_TEMPLATES[TRAIN]}")
        return [SettingsIssue("both dumps have one template", lost, (fix,))]
    return [finding for name, template in templates for finding in _check_template(name, template)]


def _check_template(name: str, template: str) -> list[SettingsIssue]:
    folder = template.rpartition("/")[0] or "/shared/rl/PROJECT/RUN"
    suggestion = format_argument(name, f"{folder}/{GOOD_TEMPLATES[name]}")
    fields = _parse_fields(_SHELL_REFERENCE.sub("x", template))
    argument = format_argument(name, template)
    if fields is None or any(field not in TEMPLATE_FIELDS[name] for field in fields):
        lost = "slime fills in nothing else: the first rollout ends the run with an error."
        allowed = " and ".join(f"{{{field}}}" for field in TEMPLATE_FIELDS[name])
        return [SettingsIssue(f"{argument} has a placeholder other than {allowed}", lost, (suggestion,))]
    if "rollout_id" not in fields and may_be_empty(template.rpartition("/")[2]):
        lost = "If it has no {rollout_id}, every rollout writes over the file of the one before."
        return [build_undetermined_issue(argument, lost, (suggestion,))]
    if "rollout_id" not in fields:
        lost = f"Every rollout writes over the file of the one before{', and so do evals' if name == ROLLOUT else ''}."
        return [SettingsIssue(f"{argument} has no {{rollout_id}}", lost, (suggestion,))]
    hints = []
    if name == TRAIN and "rank" not in fields:
        title = f"{argument} has no {{rank}}: versions where each rank writes keep the last one's"
        hints.append(SettingsIssue(title, fix=(suggestion,)))
    if not template.startswith(("/", "$")):
        title = f"{argument} is a relative path: it counts from the working directory of a Ray actor"
        hints.append(SettingsIssue(title))
    return hints


def _parse_fields(template: str) -> list[str] | None:
    """Returns the names of a template's placeholders; None if `str.format` can't parse it."""
    try:
        return [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError:
        return None


def _check_evals(settings: TrainerSettings) -> list[SettingsIssue]:
    data = settings.get("eval_prompt_data")
    sets = len(data) // 2 if isinstance(data, list) else 0
    if not settings.get("eval_interval") or _is_set_to_ours(settings, "custom_eval_rollout_log_function_path"):
        return []
    if _has_log_function(settings) and not (settings.get(ROLLOUT) or settings.get("dump_details")):
        lost = "The log function of rollouts is not called for evals."
        if is_unresolved(settings["eval_interval"]):
            setting = format_argument("eval_interval", settings["eval_interval"])
            return [build_undetermined_issue(setting, f"If it is set, evals are written nowhere. {lost}", (LOG_EVAL,))]
        return [SettingsIssue("evals are written nowhere", lost, (LOG_EVAL,))]
    title = "the dump of an eval is one list of all its data sets, without their names"
    if sets > 1 and is_unresolved(settings["eval_interval"]):
        setting = format_argument("eval_interval", settings["eval_interval"])
        return [build_undetermined_issue(setting, f"If it is set, {title}.", (LOG_EVAL,))]
    if sets > 1:
        return [SettingsIssue(title, f"Which of the {sets} data sets a sample is of.", (LOG_EVAL,))]
    return [SettingsIssue(title, fix=(LOG_EVAL,))] if settings.get("eval_config") else []


def _check_filter(settings: TrainerSettings) -> list[SettingsIssue]:
    path = settings.get("dynamic_sampling_filter_path")
    if not path or settings.get("rollout_all_samples_process_path"):
        return []
    lost = "The groups that the filter drops are in no dump; only a function for all samples is given them."
    title = format_argument("dynamic_sampling_filter_path", path)
    if may_be_empty(path):
        return [build_undetermined_issue(title, f"If it is not empty: {lost}", (LOG, ALL_SAMPLES))]
    return [SettingsIssue(title, lost, (LOG, ALL_SAMPLES))]


def _check_other_log_function(settings: TrainerSettings) -> list[SettingsIssue]:
    name = "custom_rollout_log_function_path"
    if not settings.get(name) or _has_log_function(settings):
        return []
    argument = format_argument(name, settings[name])
    return [SettingsIssue(f"{argument}: if it returns True, slime logs no rollout/* and perf/* metrics")]


def _check_debug_load(settings: TrainerSettings) -> list[SettingsIssue]:
    """Checks slime's own replay of its dumps, for debugging: it runs the training process alone."""
    template = settings.get("load_debug_rollout_data")
    if not template:
        return []
    argument = format_argument("load_debug_rollout_data", template)
    if may_be_empty(template):
        return [build_undetermined_issue(argument, "If it is not empty, nothing is generated and evals are skipped.")]
    lost = "Evals are skipped." if settings.get("eval_interval") else ""
    alternative = (FORGED_FUNCTION, format_argument(FORGED_DATA, template))
    findings = [SettingsIssue(f"{argument}: nothing is generated", lost, alternative if lost else ())]
    if "{rollout_id}" not in str(template) and settings.get("num_rollout", 1) != 1:
        findings.append(SettingsIssue(f"{argument} has no {{rollout_id}}: one file every time"))
    if _has_log_function(settings):
        title = "log_rollout is called for loaded rollouts as well: this run shows their samples again"
        findings.append(SettingsIssue(title))
    return findings


def _check_forge_load(settings: TrainerSettings) -> list[SettingsIssue]:
    if not (template := settings.get(FORGED_DATA)):
        return []
    argument = format_argument(FORGED_DATA, template)
    if settings.get("rollout_function_path") == FORGED_ROLLOUT_FUNCTION:
        return [SettingsIssue(f"{argument}: a rollout without a file of its own is that of rollout 0, again")]
    lost = "Nothing is loaded, without a message: only that rollout function reads it."
    return [SettingsIssue(f"{argument} without its rollout function", lost, (FORGED_FUNCTION,))]


def recommended_lines() -> list[str]:
    return [LOG, LOG_EVAL, ALL_SAMPLES]


def store_lines() -> list[str]:
    return [DETAILS]


def replay_lines() -> list[str]:
    return ["--rollout-function-path rolloutdeck.trainers.slime.generate_rollout"]


def environment_lines(values: Mapping[str, str]) -> list[str]:
    """Returns the lines for `ray job submit`: the rollout manager, which calls the functions, is an actor of Ray."""
    return [f"--runtime-env-json={shlex.quote(json.dumps({'env_vars': dict(values)}))}"]
