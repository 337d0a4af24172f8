"""CURE: its files, settings checks and replay by `pull`. No file states its step: they are counted in its results.

Depends on: `rolloutdeck.trainer_api`; replay on `rolloutdeck.replay`.
Invariant: it runs no code inside CURE.

Source: Gen-Verse/CURE 69fe174. sample.py begins a step with a line "code response length: …" in
`results/results-rl-{model}-{data set}.txt`; then sample.py, execute.py and reward.py overwrite the files in
`temp_data`. run.py evaluates every `eval_interval` steps. A folder that the user named `step3` states its step, too.
"""

from __future__ import annotations

import math
import re
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    FunctionReference,
    Trainer,
    assume_split,
    find_step_in_parents,
    match_step,
)
from rolloutdeck.trainer_config import read_config_file

__all__ = ["TRAINER"]

_STEP_FOLDER = re.compile(r"(?:step|iter)[_-]?(\d{1,9})\Z")
OUTPUTS_FILE = re.compile(r"outputs-rl-(?P<run>.+)\.json\Z")
_EVAL_FILE = re.compile(r"(?:outputs|results)-(?P<run>eval-.+)\.(?:json|txt)\Z")
_STEP_MARK = b"code response length:"
_EXECUTE_MARK = b"code acc: "  # the first line of execute.py, for results without lines of sample.py
_EVAL_MARK = b"code acc (average proportion"  # eval.py's line in `evaluation/results/results-eval-*.txt`
NEXT_STEP_SECONDS = 30.0  # results are newer than data by this if the next step has begun; a copy takes less


def find_cure_step(path: Path) -> int:
    """Returns the step in a folder's name, else the step counted from 0."""
    step = _parse_folder_step(path)
    return max(0, _count_steps(path, path.parent.parent / "results") - 1) if step is None else step


def find_eval_step(path: Path) -> int | None:
    """Returns the step in a folder's name, else the number of steps before this evaluation, as run.py counts them.

    Without a training next to it: the number of earlier evaluations. None if the training has continued since, and its
    configuration does not show by how many steps.
    """
    if (step := _parse_folder_step(path)) is not None:
        return step
    training = path.parent.parent.parent / "optimization"
    results_files = _list_training_results(training / "results")
    if trained_steps := sum(count for _, _, count in results_files):
        is_newest = results_files[-1][0] - _get_modification_time(path) <= NEXT_STEP_SECONDS
        return trained_steps if is_newest else _find_earlier_eval_step(path, training, trained_steps)
    all_results = (path.parent.parent / "results").glob("results-eval-*.txt")
    return max(0, sum(_count_lines(results, _EVAL_MARK) for results in all_results) - 1)


def _find_earlier_eval_step(path: Path, training: Path, trained_steps: int) -> int | None:
    """Returns the step of the last evaluation by the number of evaluations; None if it does not fit to the steps."""
    match, interval = _EVAL_FILE.match(path.name), read_training_setting(training, "eval_interval")
    if not match or not isinstance(interval, int):
        return None
    step = interval * _count_lines(path.parent.parent / f"results/results-{match['run']}.txt", _EVAL_MARK)
    return step if 0 < step <= trained_steps <= step + interval else None


def read_training_setting(training: Path, name: str) -> Any:
    """Returns a setting of the training in the folder `training`; None if it is not known."""
    try:
        return read_config_file(training / "optimization_config.py")[0].get(name)
    except UsageError:
        return None


def find_results_step(path: Path) -> int:
    """Returns the first step of these training results: the number of steps of the models before.

    The name of their folder is not used: a copy of a later step contains the results of the earlier ones, too.
    """
    all_results = sorted(path.parent.glob("results-rl-*.txt"), key=_build_results_key)
    earlier = takewhile(lambda results: results != path, all_results)
    return sum(_count_training_steps(results) for results in earlier)


def _build_results_key(results: Path) -> tuple[bool, float, str]:
    """Returns the sort key of results: the base model first, then the models trained from it by modification time."""
    return "ckpt." in results.name, _get_modification_time(results, missing=0.0), results.name


def _is_results(name: str, head: FileHead) -> bool:
    return any(mark in head.start for mark in (_STEP_MARK, _EXECUTE_MARK, _EVAL_MARK))


def _parse_folder_step(path: Path) -> int | None:
    return find_step_in_parents(path, partial(match_step, _STEP_FOLDER))


def _count_lines(path: Path, mark: bytes) -> int:
    try:
        return path.read_bytes().count(mark)
    except OSError:
        return 0


def _count_training_steps(path: Path) -> int:
    return _count_lines(path, _STEP_MARK) or _count_lines(path, _EXECUTE_MARK)


def _get_modification_time(path: Path, missing: float = math.inf) -> float:
    """Returns `missing` for a file that was removed meanwhile, and for a compressed file, which has another name."""
    try:
        return path.stat().st_mtime
    except OSError:
        return missing


def _list_training_results(folder: Path) -> list[tuple[float, str, int]]:
    """Returns modification time, file name and number of begun steps of each model's results, by time."""
    paths = list(folder.glob("results-rl-*.txt"))
    return sorted((_get_modification_time(path, missing=0.0), path.name, _count_training_steps(path)) for path in paths)


def _count_steps(path: Path, folder: Path) -> int:
    """Returns how many steps had begun when this file was written, including the steps of earlier models."""
    results_files = _list_training_results(folder)
    if not results_files:
        return 0
    match = OUTPUTS_FILE.match(path.name)
    if match and match["run"] not in results_files[-1][1]:  # an earlier model, which no longer generates
        end = max((modified_at for modified_at, name, _ in results_files if match["run"] in name), default=0.0)
        return sum(count for modified_at, _, count in results_files if modified_at <= end)
    has_next_begun = results_files[-1][0] - _get_modification_time(path) > NEXT_STEP_SECONDS
    return sum(count for _, _, count in results_files) - has_next_begun


def _is_list(name: str, head: FileHead) -> bool:
    return head.start.lstrip().startswith(b"[")


UNKNOWN_EVAL_STEP = (
    "evaluations of CURE whose step is unknown, since the training has continued (copy them to a folder named like "
    "step40, after their step)"
)
REQUIRED_SETTINGS = ("pretrained_model=MODEL", "dataset=NAME")
KINDS = (
    FileKind(
        "cure-outputs", "programs and tests of a step", "outputs-rl-*.json", _is_list, step=find_cure_step,
        split=lambda path: "train", step_kind="iteration",
    ),
    FileKind(
        "cure-outputs", "programs and tests of an evaluation", "outputs-eval-*.json", _is_list,
        step=find_eval_step, split=lambda path: "eval", step_kind="iteration", missing_step=UNKNOWN_EVAL_STEP,
    ),
    FileKind(
        "cure-data", "what a step trained on", "rl_*data.json", _is_list, step=find_cure_step,
        split=lambda path: "train", step_kind="iteration", adds_columns=True,
    ),
    FileKind(
        "cure-results", "metrics of a training", "results-rl-*.txt", _is_results, step=find_results_step,
        step_kind="iteration", content="metrics",
    ),
    FileKind(
        "cure-results", "metrics of evaluations", "results-eval-*.txt", _is_results, step=find_eval_step,
        step_kind="iteration", content="metrics", missing_step=UNKNOWN_EVAL_STEP,
    ),
)  # fmt: skip

TRAINER = Trainer(
    name="cure",
    kinds=KINDS,
    guess_split=assume_split("train", "CURE names its evaluations"),
    loads=("cure",),
    replays_own_prompts=("cure",),
    instructions="CURE has no setting that stores a step: start this in its folder, before run.py:",
    first_step=0,
    selected_actions={"": ("mask",)},  # the rows are deleted, the other answers to their prompts stay
    required_settings=REQUIRED_SETTINGS,
    setting_names=("total_steps", "optimized_model_name", "train_dataset", "separate_training"),
    check_settings=FunctionReference("rolloutdeck.trainers.cure.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.cure.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.cure.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.cure.settings_check:recommended_lines"),
    store_lines=FunctionReference("rolloutdeck.trainers.cure.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.cure.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.cure.step_files:read_step"),
)
