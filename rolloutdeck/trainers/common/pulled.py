"""Detects files that `rolloutdeck pull` wrote: they belong to another run."""

from __future__ import annotations

from pathlib import Path

from rolloutdeck.replay import PULL_MANIFEST

MAX_PARENT_FOLDERS = 5  # parent folders that are searched for pull's manifest


def is_pulled(folder: Path) -> bool:
    """Returns whether `folder` or one of its nearest parents has pull's manifest."""
    return any((path / PULL_MANIFEST).is_file() for path in [folder, *list(folder.parents)[:MAX_PARENT_FOLDERS]])
