"""Steps of CURE that can be trained on again: the rewards of reward.py and the programs and tests that it scored.

`temp_data/outputs-rl-{model}-{data set}.json` and `rl_code_data.json` with `rl_case_data.json` (`rl_data.json` if
`separate_training` is False) belong to the same step only between reward.py and the next sample.py, which begins to
overwrite them; their names do not show it. They are accepted if the rewards are newer and each reward is of an answer
in the outputs. Source: Gen-Verse/CURE 69fe174: sample.py:411, execute.py:272, reward.py:178-186, train.py:64-67.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.common import walk_folders
from rolloutdeck.trainers.cure import NEXT_STEP_SECONDS, OUTPUTS_FILE, find_cure_step, read_training_setting

FORMAT, ROLE, END_TOKEN = "cure", "rollout", "<|im_end|>"
SEPARATE_FILES, JOINT_FILES = ("rl_code_data.json", "rl_case_data.json"), ("rl_data.json",)
ANSWERS = {"code_generation_prompt": "full_code_generation", "case_generation_prompt": "full_case_generation"}
CURE_FACTS = {"role": ROLE, "format": FORMAT, "serialisation": "json", "parameter_sync_step": 1}

MIXED_CURE_STEPS = "steps to replay, as these files of CURE belong to several steps"
UNEXECUTED_CURE_STEPS = "steps to replay, as CURE has not run their programs yet"

Task = Mapping[str, Any]


def find_steps(root: Path) -> list[StepLocation]:
    """Returns the folders below `root` with the files of a step, complete or not. Ignores what can't be read."""
    locations = (_find_location(folder, set(names)) for folder, names in walk_folders(root))
    return [location for location in locations if location]


def _find_location(folder: Path, names: set[str]) -> StepLocation | None:
    outputs = [name for name in names if OUTPUTS_FILE.match(name)]
    reward_sets = [files for files in (SEPARATE_FILES, JOINT_FILES) if names.issuperset(files)]
    if not outputs or not reward_sets:
        return None
    try:
        newest = max(outputs, key=lambda name: (_get_oldest_change(folder, [name]), name))
        rewards = max(reward_sets, key=lambda files: _get_oldest_change(folder, files))
        delay = _get_oldest_change(folder, [newest]) - _get_oldest_change(folder, rewards)
        complete = delay < NEXT_STEP_SECONDS and all(_ends_like_array(folder / name) for name in (newest, *rewards))
    except OSError:  # removed meanwhile
        return None
    reason = "" if complete else MIXED_CURE_STEPS
    files = (*rewards, newest)
    return StepLocation("cure", folder, "temp_data", files, reason, has_samples=True, overwritten=True)


def _get_oldest_change(folder: Path, names: Iterable[str]) -> float:
    return min((folder / name).stat().st_mtime for name in names)


def _ends_like_array(path: Path) -> bool:
    """Returns whether the file ends like a JSON array."""
    with path.open("rb") as file:
        file.seek(-min(8, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read().rstrip().endswith(b"]")


def read_step(location: StepLocation) -> LoadableStep | str:
    """Returns the step read from its files, or the reason why it is skipped."""
    *rewards, outputs = location.files
    try:
        tasks = load_json_objects(location.path / outputs)
        rows = [row for name in rewards for row in load_json_objects(location.path / name)]
    except (OSError, ValueError) as error:
        return f"steps to replay, as these files of CURE can't be read: {error}"
    if any("all_case_bool_table" not in task for task in tasks):
        return UNEXECUTED_CURE_STEPS
    if not are_answers_of(rows, tasks):
        return MIXED_CURE_STEPS
    match, dataset = OUTPUTS_FILE.match(outputs), read_training_setting(location.path.parent, "train_dataset")
    facts = {**CURE_FACTS, **parse_model(match["run"] if match else "", dataset)}
    step = find_cure_step(location.path / outputs)
    return LoadableStep(location.path, ROLE, step, "iteration", location.files, location.layout, facts)


def load_json_objects(path: Path) -> list[dict[str, Any]]:
    """Loads a JSON array of objects. Raises OSError, and ValueError for anything else."""
    try:
        objects = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise ValueError(f"{path.name} is not an array of objects")
    return objects


def are_answers_of(rows: Sequence[Task], tasks: Iterable[Task]) -> bool:
    """Returns whether each row that is trained on is an answer in these tasks."""
    known_answers = set(iter_answers(tasks))
    for prompt, response in ((row.get("prompt"), row.get("response")) for row in rows):
        if not isinstance(prompt, str) or not isinstance(response, str):
            return False
        if known_answers.isdisjoint({(prompt, response), (prompt, response.removesuffix(END_TOKEN))}):
            return False
    return True


def iter_answers(tasks: Iterable[Task]) -> Iterator[tuple[str, str]]:
    """Yields (prompt, answer) of all answers that are text."""
    for task in tasks:
        for name, responses in ANSWERS.items():
            prompt, texts = task.get(name), task.get(responses)
            if isinstance(prompt, str) and isinstance(texts, list):
                yield from ((prompt, text) for text in texts if isinstance(text, str))


def parse_model(run: str, dataset: object) -> dict[str, str]:
    """Returns the model in the name of the outputs, written by CURE with dots for slashes.

    `dataset`: the data set of the training, if it is known; its name may have a dash. From the second step on, the name
    has the path of the checkpoint that is trained. It does not show the model that the training began with.
    """
    suffix = f"-{dataset}"
    model = run.removesuffix(suffix) if run.endswith(suffix) else run.rpartition("-")[0]
    return {"model": model} if model and "ckpt." not in model else {}
