"""Searches folders for steps that can be replayed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rolloutdeck.replay import PULL_MANIFEST
from rolloutdeck.trainer_api import StepLocation

MAX_PARENT_FOLDERS = 5  # parent folders that are searched for pull's manifest


def walk_folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yields `root` and the folders below that are not hidden, with the sorted names of their files."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(folder), sorted(names)


def is_pulled(folder: Path) -> bool:
    """Returns whether `rolloutdeck pull` wrote the folder: its manifest is in the folder or one of its parents."""
    return any((path / PULL_MANIFEST).is_file() for path in [folder, *list(folder.parents)[:MAX_PARENT_FOLDERS]])


def mark_pulled(locations: Sequence[StepLocation], reason: str) -> list[StepLocation]:
    """Returns the locations; those that `pull` wrote can't be used, since they belong to another run."""
    pulled = {folder: is_pulled(folder) for folder in {location.path.parent for location in locations}}
    return [replace(location, reason=reason) if pulled[location.path.parent] else location for location in locations]
