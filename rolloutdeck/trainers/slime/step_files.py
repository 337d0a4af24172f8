"""Dumps of rollouts that slime can load again, and the facts a run must fit.

Source: slime 624b824a, `observability/rollout_data_utils.py`: `torch.save` of {"rollout_id", "samples"} to
`--save-debug-rollout-data` with `{rollout_id}` filled in; dumps of evals are named `eval_{rollout_id}`. Files are read
by `safe_pickle`, never unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import open_torch_dict
from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.common import is_pulled, walk_folders
from rolloutdeck.trainers.slime import SLIME_HEAD_BYTES, is_slime_dump
from rolloutdeck.trainers.slime.facts import SLIME_FACTS

KIND = "rollout_id"
PULLED_ROLLOUTS = "rollouts of slime that `rolloutdeck pull` put there"
UNREADABLE_ROLLOUTS = "rollouts of slime that can't be read"
UNNAMED_ROLLOUTS = "rollouts of slime in a file without their id in its name: the next rollout overwrites it"

_NAME = re.compile(r"(?!\.).*\d.*\.pt\Z", re.S)
_EVAL = re.compile(r"(?<![a-z])eval_\d", re.IGNORECASE)


def find_steps(root: Path) -> list[StepLocation]:
    """Returns every dump of a rollout below `root`, which may be a dump itself. Dumps of evals are ignored."""
    if root.is_file():
        return [_build_location(root, is_pulled(root.parent))] if _is_candidate(root) else []
    locations: list[StepLocation] = []
    for folder, names in walk_folders(root):
        paths = [folder / name for name in names if _is_candidate(folder / name)]
        pulled = bool(paths) and is_pulled(folder)
        locations += [_build_location(path, pulled) for path in paths]
    return locations


def _build_location(path: Path, pulled: bool) -> StepLocation:
    reason = PULLED_ROLLOUTS if pulled else ""
    return StepLocation("slime", path, "rollout", (path.name,), reason, has_samples=not pulled)


def _is_candidate(path: Path) -> bool:
    if not _NAME.match(path.name) or _EVAL.search(path.name):
        return False
    try:
        stat = path.stat()
        return _is_rollout_dump(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=65536)
def _is_rollout_dump(path: Path, size: int, modified_at: int) -> bool:
    """Returns whether the file starts like slime's dumps of rollouts. Cached until the file changes."""
    with path.open("rb") as file:
        return is_slime_dump(file.read(SLIME_HEAD_BYTES), trained=False)


def read_step(location: StepLocation) -> LoadableStep | str:
    """Returns the rollout and its facts, read from its samples, or the reason why it is skipped."""
    try:
        with open_torch_dict(location.path) as saved:
            step, samples = saved.get("rollout_id"), saved.get("samples")
    except (OSError, SafePickleError, ImportError):
        return UNREADABLE_ROLLOUTS
    if type(step) is not int or step < 0 or not isinstance(samples, list) or not samples:
        return UNREADABLE_ROLLOUTS
    if step not in map(int, re.findall(r"\d+", location.path.name)):
        return UNNAMED_ROLLOUTS
    facts = build_sample_facts(samples)
    return LoadableStep(location.path.parent, "rollout", step, KIND, location.files, location.layout, facts)


def build_sample_facts(samples: Iterable[Any]) -> dict[str, Any]:
    """Returns the facts of `compatibility` that the samples show.

    The number of prompts is known if each sample is in a group, samples per prompt if all groups have the same size.
    """
    rows = [sample for sample in samples if isinstance(sample, Mapping)]
    facts: dict[str, Any] = {**SLIME_FACTS, "rows": len(rows)}
    groups: dict[int, set[Any]] = {}
    for index, row in enumerate(rows):
        group, rollout_id = row.get("group_index"), row.get("rollout_id")
        if type(group) is not int:
            return facts
        answer = ("of", rollout_id) if type(rollout_id) is int else index  # parts of one answer count once
        groups.setdefault(group, set()).add(answer)
    sizes = {len(answers) for answers in groups.values()}
    return {**facts, "prompts": len(groups), **({"samples_per_prompt": sizes.pop()} if len(sizes) == 1 else {})}
