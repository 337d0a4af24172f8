"""Files that ART writes below its folder `.art`. Source: `Model.log` in src/art/model.py, openpipe-art 0.5.18."""

from __future__ import annotations

import re

from rolloutdeck.trainer_api import FileHead, FileKind, TrainerFiles, assume_split, match_step

_FILE = re.compile(r"(\d{4,18})\.parquet\Z")
_COLUMNS = (b"messages", b"reward", b"tool_call_id", b"trainable")


def _is_trajectories(name: str, head: FileHead) -> bool:
    return all(column in head.start for column in _COLUMNS)


FILES = TrainerFiles(
    name="art",
    kinds=(
        FileKind(
            "art", "trajectories of a step", "*.parquet", _is_trajectories,
            step=lambda path: match_step(_FILE, path.name),
        ),
    ),
    guess_split=assume_split("train", "its folder is not called train, val or test"),
    hidden_folders=(".art",),
)  # fmt: skip
