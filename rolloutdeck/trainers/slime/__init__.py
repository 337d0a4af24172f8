"""The files slime writes, wherever `--dump-details` and `--save-debug-*-data` put them. Read from slime 624b824a:
`observability/rollout_data_utils.py` and `observability/train_data_utils.py`.

A template without `{rollout_id}` gives a name without the step; the file itself says it.

`rolloutdeck.trainers.slime.log_rollout` and its like are the paths that slime's arguments take, see `slime.plugin`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from rolloutdeck.trainer_api import FileHead, FileKind, FunctionReference, Trainer
from rolloutdeck.trainers.common import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "slime.plugin.record": ("log_rollout", "log_eval", "all_samples", "sample_hook"),
        "slime.plugin.replay": ("generate_rollout",),
    },
)

_ROLLOUT = re.compile(r"(?:eval_)?(\d{1,18})\.pt\Z")
_TRAIN = re.compile(r"(\d{1,18})(?:_\d{1,9})?\.pt\Z")
_EVAL = re.compile(r"(?<![a-z])eval_\d", re.IGNORECASE)
_VERSION = re.compile(rb"[^.]format_version")
FORGED_ROLLOUT_FUNCTION = "slime.rollout.forge_load.generate_rollout"
SLIME_HEAD_BYTES = 1024  # bytes, in which a file says what it is


def _step_in(pattern: re.Pattern[str], path: PurePath) -> int | None:
    found = pattern.match(path.name)
    return int(found.group(1)) if found else None


def is_slime_dump(start: bytes, *, trained: bool) -> bool:
    """Whether a file begins as slime's dumps of rollouts do, or as those of what was `trained`. torch calls an entry of
    the archive `.format_version`, which is no key of the dump."""
    if not start.startswith(b"PK\x03\x04") or b"rollout_id" not in start[:SLIME_HEAD_BYTES]:
        return False
    return bool(_VERSION.search(start[:SLIME_HEAD_BYTES])) == trained


KINDS = (
    FileKind(
        "slime-rollout",
        "samples of a rollout",
        "*.pt",
        "whole",
        lambda name, head: is_slime_dump(head.start, trained=False),
        step=lambda path: _step_in(_ROLLOUT, path),
        split=lambda path: "eval" if _EVAL.search(path.name) else "train",
        stepless=True,
        step_kind="rollout_id",
    ),
    FileKind(
        "slime-train",
        "what a rollout was trained with",
        "*.pt",
        "whole",
        lambda name, head: is_slime_dump(head.start, trained=True),
        step=lambda path: _step_in(_TRAIN, path),
        split=lambda path: "train",
        stepless=True,
        step_kind="rollout_id",
        joins=True,
    ),
)


def guess_split(heads: Sequence[FileHead], steps: Sequence[int]) -> tuple[str, str]:
    """Never asked: the name of each file says it."""
    return "train", "only the names of files say it"


TRAINER = Trainer(
    name="slime",
    kinds=KINDS,
    others={
        "global_dataset_state_dict_*.pt": "states of a data source",
        "*.trace_timeline_cache.json": "caches of a trace viewer",
    },
    guess_split=guess_split,
    loads=("slime-rollout",),
    instructions="Add these to the arguments of slime's train.py:",
    first_step=0,
    replays_only=True,
    masks_flagged=True,
    only_trained=True,
    ways={"debug": {"rollout_function_path": None}, "forge": {"rollout_function_path": FORGED_ROLLOUT_FUNCTION}},
    check_settings=FunctionReference("rolloutdeck.trainers.slime.settings_check:check_settings"),
    read_requirements=FunctionReference("rolloutdeck.trainers.slime.layout:read_requirements"),
    guess_settings=FunctionReference("rolloutdeck.trainers.slime.layout:guess_settings"),
    recommended_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:recommended_lines"),
    keep_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:store_lines"),
    find_steps=FunctionReference("rolloutdeck.trainers.slime.step_files:find_steps"),
    read_step=FunctionReference("rolloutdeck.trainers.slime.step_files:read_step"),
    environment_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:environment_lines"),
    replay_lines=FunctionReference("rolloutdeck.trainers.slime.settings_check:replay_lines"),
)
