"""Steps that ROLL can load again: `{dump_dir}/train/step_{step:06d}.pkl` of `rollout_mock`, one file each.

They are written by a plain `open("wb")`, so an existing file can be incomplete. Files of validation are next to them in
`val/`; ROLL does not train on them. Source: ROLL 8eb27cc2, `distributed/scheduler/rollout_mock_mixin.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolloutdeck.trainer_api import LoadableStep, StepLocation, match_step
from rolloutdeck.trainers.common import mark_pulled, walk_folders

if TYPE_CHECKING:
    from rolloutdeck.safe_pickle.batches import RolloutBatch

FORMAT, ROLE, VALIDATION = "roll-mock", "rollout", "val"
ROLL_FACTS = {"role": ROLE, "format": FORMAT, "serialisation": "torch", "parameter_sync_step": 1}
CLASS_MODULE = b"roll.distributed.scheduler.protocol"
HEAD_BYTES = 4096  # the first bytes of a file, which have the name of its class

TRUNCATED_BATCHES = "steps to replay, as ROLL's batch is truncated"
PULLED_BATCHES = "steps to replay that `rolloutdeck pull` wrote"

_STEP = re.compile(r"step_(\d{6,18})\.pkl\Z")
_PROMPT_TENSORS = ("prompt_id", "origin_prompt_id")  # tensors that number the prompts of a batch
_AGENT_COLUMNS = ("traj_group_id", "group_ids", "env_ids")  # columns that only a batch of agents has


def find_steps(root: Path) -> list[StepLocation]:
    """Returns every file below `root` that looks like a step of training, complete or not."""
    paths = [root] if root.is_file() else [folder / name for folder, names in walk_folders(root) for name in names]
    return mark_pulled([location for path in paths if (location := _find_location(path))], PULLED_BATCHES)


def _find_location(path: Path) -> StepLocation | None:
    if not _STEP.match(path.name) or path.parent.name == VALIDATION:
        return None
    try:
        stat = path.stat()
        is_batch, complete = _probe_file(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None
    if not is_batch:
        return None
    reason = "" if complete else TRUNCATED_BATCHES
    return StepLocation("roll", path, "mock", (path.name,), reason, has_samples=True)


@lru_cache(maxsize=65536)
def _probe_file(path: Path, size: int, modified_at: int) -> tuple[bool, bool]:
    """Returns whether a file starts like ROLL's batches, and ends like a pickle. Cached until the file changes."""
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
        file.seek(max(0, size - 1))
        return start.startswith(b"\x80") and CLASS_MODULE in start, file.read(1) == b"."  # a pickle's last opcode


def read_step(location: StepLocation) -> LoadableStep | str:
    """Returns the step read from its batch, or the reason why it is skipped."""
    step, facts = match_step(_STEP, location.path.name), build_batch_facts(location.path)
    assert step is not None
    if isinstance(facts, str):
        return facts
    return LoadableStep(location.path.parent, ROLE, step, "global_step", location.files, location.layout, facts)


def build_batch_facts(path: Path) -> dict[str, Any] | str:
    """Returns the facts of `compatibility` that a batch shows, or the reason why it can't be read."""
    from rolloutdeck.safe_pickle import SafePickleError
    from rolloutdeck.safe_pickle.batches import open_roll_batch

    try:
        with open_roll_batch(path) as batch:
            return {**ROLL_FACTS, **_build_shape_facts(batch)}
    except (SafePickleError, OSError) as error:
        return f"steps to replay, as ROLL's batch can't be read: {error}"


def _build_shape_facts(batch: RolloutBatch) -> dict[str, Any]:
    facts: dict[str, Any] = {"rows": batch.rows}
    for name, fact in {"prompts": "max_prompt_length", "responses": "max_response_length"}.items():
        if name in batch.fields and len(batch.fields[name].shape) == 2:
            facts[fact] = batch.fields[name].shape[1]
    sizes = Counter(_list_groups(batch))
    if sizes and len(set(sizes.values())) == 1:
        facts |= {"prompts": len(sizes), "samples_per_prompt": batch.rows // len(sizes)}
    return facts


def _list_groups(batch: RolloutBatch) -> list[Hashable]:
    """Returns the prompt of each row; empty if unknown, as in batches of agents, whose rows are turns."""
    for name in _PROMPT_TENSORS:
        if name in batch.fields:
            return [tuple(batch.numbers(name, row) or ()) for row in range(batch.rows)]
    if "id" not in batch.columns or set(_AGENT_COLUMNS) & set(batch.columns):
        return []
    ids, domains = batch.column("id"), batch.column("domain") if "domain" in batch.columns else [""] * batch.rows
    return [(str(domain), str(row_id)) for domain, row_id in zip(domains, ids, strict=True)]
