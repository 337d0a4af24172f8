"""slime's dumps of rollouts as steps that it can load again: which files they are, and what they fit.

Read from slime 624b824a, `observability/rollout_data_utils.py`: `torch.save` of {"rollout_id", "samples"} at
`--save-debug-rollout-data` with `{rollout_id}` filled in; those of an eval are called `eval_{rollout_id}`. What a file
holds is read by `safe`, never unpickled.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rolloutdeck.safe_pickle import SafePickleError
from rolloutdeck.safe_pickle.batches import open_torch_dict
from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.common import is_pulled
from rolloutdeck.trainers.slime import SLIME_HEAD_BYTES, is_slime_dump
from rolloutdeck.trainers.slime.facts import SLIME_ROLLOUT_FORMAT

KIND = "rollout_id"
PULLED_ROLLOUTS = "rollouts of slime that `rolloutdeck pull` put there"
UNREADABLE_ROLLOUTS = "rollouts of slime that can't be read"
UNNAMED_ROLLOUTS = "rollouts of slime in a file that is not named for them: the next one is written over it"

_NAME = re.compile(r"(?!\.).*\d.*\.pt\Z", re.S)
_EVAL = re.compile(r"(?<![a-z])eval_\d", re.IGNORECASE)


def find_steps(root: Path) -> list[StepLocation]:
    """Every dump of a rollout below `root`, which may be one itself; those of evals are none."""
    if root.is_file():
        return [_spot(root, is_pulled(root.parent))] if _may_be(root) else []
    found: list[StepLocation] = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = [path for path in (Path(folder, name) for name in sorted(names)) if _may_be(path)]
        pulled = bool(here) and is_pulled(Path(folder))
        found += [_spot(path, pulled) for path in here]
    return found


def _spot(path: Path, pulled: bool) -> StepLocation:
    return StepLocation("slime", path, "rollout", (path.name,), PULLED_ROLLOUTS if pulled else "", dumps=not pulled)


def _may_be(path: Path) -> bool:
    if not _NAME.match(path.name) or _EVAL.search(path.name):
        return False
    try:
        stat = path.stat()
        return _begins(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=65536)
def _begins(path: Path, size: int, changed: int) -> bool:
    """Whether the file begins as slime's dumps of rollouts do; read once as long as it stays as it is."""
    with path.open("rb") as file:
        return is_slime_dump(file.read(SLIME_HEAD_BYTES), trained=False)


def read_step(spot: StepLocation) -> LoadableStep | str:
    """Which rollout this is and what it fits, read from its samples; else the reason why it is left out."""
    try:
        with open_torch_dict(spot.path) as saved:
            step, samples = saved.get("rollout_id"), saved.get("samples")
    except (OSError, SafePickleError, ImportError):
        return UNREADABLE_ROLLOUTS
    if type(step) is not int or step < 0 or not isinstance(samples, list) or not samples:
        return UNREADABLE_ROLLOUTS
    if step not in map(int, re.findall(r"\d+", spot.path.name)):
        return UNNAMED_ROLLOUTS
    return LoadableStep(spot.path.parent, "rollout", step, KIND, spot.files, spot.layout, build_sample_facts(samples))


def build_sample_facts(samples: Iterable[Any]) -> dict[str, Any]:
    """Facts of `compatibility` that the samples themselves tell: prompts where each is in a group, their answers where
    every group has as many."""
    rows = [one for one in samples if isinstance(one, Mapping)]
    facts: dict[str, Any] = {
        "role": "rollout",
        "serialisation": "torch",
        "format": SLIME_ROLLOUT_FORMAT,
        "rows": len(rows),
    }
    groups: dict[int, set[Any]] = {}
    for place, row in enumerate(rows):
        group, whole = row.get("group_index"), row.get("rollout_id")
        if type(group) is not int:
            return {**facts, "parameter_sync_step": 1}
        groups.setdefault(group, set()).add(("of", whole) if type(whole) is int else place)  # fragments of one answer
    answers = {len(own) for own in groups.values()}
    return {
        **facts,
        "prompts": len(groups),
        **({"samples_per_prompt": answers.pop()} if len(answers) == 1 else {}),
        "parameter_sync_step": 1,
    }
