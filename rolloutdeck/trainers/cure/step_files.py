"""A step of CURE that can be trained on again: what reward.py wrote, with the programs and tests that it scored.

`temp_data/outputs-rl-{model}-{data set}.json` and `rl_code_data.json` with `rl_case_data.json` (`rl_data.json`, where
`separate_training` is False) belong together only between reward.py and the next sample.py, which begins to write over
them; nothing in their names tells. They are taken when the rewards are the newer ones and each is of an answer in the
outputs. Read from Gen-Verse/CURE 69fe174: sample.py:411, execute.py:272, reward.py:178-186, train.py:64-67.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.cure import NEXT_STEP_SECONDS, OUTPUTS_FILE, find_cure_step

FORMAT, ROLE, END = "cure", "rollout", "<|im_end|>"
APART, TOGETHER = ("rl_code_data.json", "rl_case_data.json"), ("rl_data.json",)
ANSWERS = {"code_generation_prompt": "full_code_generation", "case_generation_prompt": "full_case_generation"}
CURE_FACTS = {"role": ROLE, "format": FORMAT, "serialisation": "json", "parameter_sync_step": 1}

MIXED_CURE_STEPS = "steps to replay, as these files of CURE belong to several steps"
UNEXECUTED_CURE_STEPS = "steps to replay, as CURE has not run their programs yet"

Task = Mapping[str, Any]


def find_steps(root: Path) -> list[StepLocation]:
    """The folders below `root` that hold the files of a step, whole or not. Never raises for what can't be read."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if spot := _spot(Path(folder), set(names)):
            found.append(spot)
    return found


def _spot(folder: Path, names: set[str]) -> StepLocation | None:
    outputs = [name for name in names if OUTPUTS_FILE.match(name)]
    sets = [files for files in (APART, TOGETHER) if names.issuperset(files)]
    if not outputs or not sets:
        return None
    try:
        newest = max(outputs, key=lambda name: (_written(folder, [name]), name))
        trained = max(sets, key=lambda files: _written(folder, files))
        whole = all(_ends(folder / name) for name in (newest, *trained))
        whole = whole and _written(folder, [newest]) - _written(folder, trained) < NEXT_STEP_SECONDS
    except OSError:  # gone meanwhile
        return None
    return StepLocation(
        "cure", folder, "temp_data", (*trained, newest), "" if whole else MIXED_CURE_STEPS, dumps=True, fleeting=True
    )


def _written(folder: Path, names: Iterable[str]) -> float:
    return min((folder / name).stat().st_mtime for name in names)


def _ends(path: Path) -> bool:
    """Whether it ends as a JSON array does."""
    with path.open("rb") as file:
        file.seek(-min(8, file.seek(0, os.SEEK_END)), os.SEEK_END)
        return file.read().rstrip().endswith(b"]")


def read_step(spot: StepLocation) -> LoadableStep | str:
    """What this step is, read from its files; else the reason why it is left out."""
    *trained, outputs = spot.files
    try:
        tasks = load_json_objects(spot.path / outputs)
        rows = [row for name in trained for row in load_json_objects(spot.path / name)]
    except (OSError, ValueError) as error:
        return f"steps to replay, as these files of CURE can't be read: {error}"
    if any("all_case_bool_table" not in task for task in tasks):
        return UNEXECUTED_CURE_STEPS
    if not belong(rows, tasks):
        return MIXED_CURE_STEPS
    named = OUTPUTS_FILE.match(outputs)
    facts = {**CURE_FACTS, **model_of(named["run"] if named else "")}
    step = find_cure_step(spot.path / outputs)
    return LoadableStep(spot.path, ROLE, step, "iteration", spot.files, spot.layout, facts)


def load_json_objects(path: Path) -> list[dict[str, Any]]:
    """A JSON array of objects. Raises OSError, and ValueError for anything else."""
    try:
        found = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f"{path.name} is no array of objects")
    return found


def belong(rows: Sequence[Task], tasks: Iterable[Task]) -> bool:
    """Whether each row that is trained on is an answer in these tasks."""
    known = set(answers(tasks))
    pairs = [(row.get("prompt"), row.get("response")) for row in rows]
    return all(
        isinstance(prompt, str)
        and isinstance(response, str)
        and {(prompt, response), (prompt, response.removesuffix(END))} & known
        for prompt, response in pairs
    )


def answers(tasks: Iterable[Task]) -> Iterator[tuple[str, str]]:
    """(prompt, answer) of all answers; what is no text is none."""
    for task in tasks:
        for name, responses in ANSWERS.items():
            prompt, found = task.get(name), task.get(responses)
            if isinstance(prompt, str) and isinstance(found, list):
                yield from ((prompt, one) for one in found if isinstance(one, str))


def model_of(run: str) -> dict[str, str]:
    """The model in the name of the outputs, as CURE writes it there: with dots for slashes."""
    model, dash, _ = run.rpartition("-")
    return {"model": model} if dash else {}
