"""Files that ROLL writes. Source: ROLL 8eb27cc2: `pipeline/rlvr/utils.py`, `pipeline/agentic/utils.py` and
`distributed/scheduler/rollout_mock_mixin.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, FunctionReference, Trainer
from rolloutdeck.trainers.common import lazy_names

__getattr__ = lazy_names(__name__, {"roll.tracker": ("track",)})

_ROWS = re.compile(r"rollout_dump_data\.step_(\d{1,18})\.jsonl\Z")
_MOCK = re.compile(r"step_(\d{1,18})\.pkl\Z")
_COLUMNS = re.compile(rb'\s*\{\s*"[^"\\]{1,80}"\s*:\s*\[')
_CLASS = b"roll.distributed.scheduler.protocol"


def _parse_step(pattern: re.Pattern[str], path: PurePath) -> int | None:
    match = pattern.match(path.name)
    return int(match.group(1)) if match else None


KINDS = (
    FileKind(
        "roll-jsonl",
        "samples of a step",
        "rollout_dump_data.step_*.jsonl",
        "complete",
        lambda name, head: bool(_COLUMNS.match(head.start)),
        step=lambda path: _parse_step(_ROWS, path),
    ),
    FileKind(
        "roll-mock",
        "a batch to load again",
        "step_*.pkl",
        "complete",
        lambda name, head: head.start.startswith(b"\x80") and _CLASS in head.start,
        step=lambda path: _parse_step(_MOCK, path),
        joins=True,
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Returns `train`: a validation of RLVR is never dumped; that of agents has the file name of the training step."""
    return "train", "ROLL writes what it trains on under this name"


TRAINER = Trainer(
    name="roll",
    kinds=KINDS,
    others={"worker_state_pipeline.json": "states of a pipeline's checkpoints"},
    guess_split=guess_split,
    loads=("roll-mock",),
    instructions="Add these to ROLL's YAML, with folders that the machine running `rolloutdeck watch` sees:",
    first_step=0,
    replays_only=True,
    masks_flagged=True,
    watch_tree="/shared/rl/{project}/{run}",
    check_settings=FunctionReference("rolloutdeck.trainers.roll.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.roll.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.roll.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.roll.settings_check:recommended_lines"),
    keep_lines=FunctionReference("rolloutdeck.trainers.roll.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.roll.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.roll.step_files:read_step"),
)
