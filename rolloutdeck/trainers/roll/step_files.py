"""The steps that ROLL can load again: `{dump_dir}/train/step_{step:06d}.pkl` of `rollout_mock`, a file each.

Written by a plain `open("wb")`, so a file that is there need not be whole. Those of validation lie beside them in
`val/`; ROLL trains on none of them. Read from ROLL 8eb27cc2, `distributed/scheduler/rollout_mock_mixin.py`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation
from rolloutdeck.trainers.common import is_pulled

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.batches import RolloutBatch

FORMAT, ROLE, VALIDATION = "roll-mock", "rollout", "val"
ROLL_FACTS = {"role": ROLE, "format": FORMAT, "serialisation": "torch", "parameter_sync_step": 1}
CLASS = b"roll.distributed.scheduler.protocol"
START = 4096  # bytes, in which a file names its class

NOT_WHOLE = "steps to replay, as ROLL's batch ends in the middle"
FROM_PULL = "steps to replay that `rolloutdeck pull` put there"

_STEP = re.compile(r"step_(\d{6,18})\.pkl\Z")
_PROMPTS = ("prompt_id", "origin_prompt_id")  # tensors that number the prompts of a batch
_OF_AGENTS = ("traj_group_id", "group_ids", "env_ids")  # columns that only a batch of agents has


def find_steps(root: Path) -> list[StepLocation]:
    """Every file below `root` that looks like a step of training, whole or not. Never raises for what can't be read."""
    found = [spot for path in _files(root) if (spot := _spot(path))]
    pulled = {folder: is_pulled(folder) for folder in {spot.path.parent for spot in found}}
    return [replace(spot, reason=FROM_PULL) if pulled[spot.path.parent] else spot for spot in found]


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(names))


def _spot(path: Path) -> StepLocation | None:
    if not _STEP.match(path.name) or path.parent.name == VALIDATION:
        return None
    try:
        stat = path.stat()
        rolls, whole = _looked_at(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None
    return StepLocation("roll", path, "mock", (path.name,), "" if whole else NOT_WHOLE, dumps=True) if rolls else None


@lru_cache(maxsize=65536)
def _looked_at(path: Path, size: int, changed: int) -> tuple[bool, bool]:
    """Whether a file begins as ROLL's batches do, and ends as a pickle does; read once as long as it stays as it is."""
    with path.open("rb") as file:
        start = file.read(START)
        file.seek(max(0, size - 1))
        return start.startswith(b"\x80") and CLASS in start, file.read(1) == b"."  # a pickle's last opcode


def read_step(spot: StepLocation) -> LoadableStep | str:
    """What this step is, read from its batch; else the reason why it is left out."""
    found = _STEP.match(spot.path.name)
    assert found
    facts = facts_of(spot.path)
    if isinstance(facts, str):
        return facts
    return LoadableStep(spot.path.parent, ROLE, int(found[1]), "global_step", spot.files, spot.layout, facts)


def facts_of(path: Path) -> dict[str, Any] | str:
    """Facts of `compat.FACTS` that a batch tells; a sentence where it is none."""
    from rolloutdeck.safe_pickle import SafePickleError
    from rolloutdeck.safe_pickle.batches import open_roll_batch

    try:
        with open_roll_batch(path) as batch:
            return {**ROLL_FACTS, **_told(batch)}
    except (SafePickleError, OSError) as error:
        return f"steps to replay, as ROLL's batch can't be read: {error}"


def _told(batch: RolloutBatch) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": batch.rows}
    for name, fact in {"prompts": "max_prompt_length", "responses": "max_response_length"}.items():
        if name in batch.fields and len(batch.fields[name].shape) == 2:
            facts[fact] = batch.fields[name].shape[1]
    sizes = Counter(_groups(batch))
    if sizes and len(set(sizes.values())) == 1:
        facts |= {"prompts": len(sizes), "samples_per_prompt": batch.rows // len(sizes)}
    return facts


def _groups(batch: RolloutBatch) -> list[Hashable]:
    """Which prompt each row answers; empty where it does not say, as batches of agents, whose rows are turns."""
    for name in _PROMPTS:
        if name in batch.fields:
            return [tuple(batch.numbers(name, row) or ()) for row in range(batch.rows)]
    if "id" not in batch.columns or set(_OF_AGENTS) & set(batch.columns):
        return []
    ids, domains = batch.column("id"), batch.column("domain") if "domain" in batch.columns else [""] * batch.rows
    return [(str(domain), str(one)) for domain, one in zip(domains, ids, strict=True)]
