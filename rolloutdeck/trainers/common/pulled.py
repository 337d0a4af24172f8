"""Files that `rolloutdeck pull` laid out: they are another run's, whoever finds them."""

from __future__ import annotations

from pathlib import Path

from rolloutdeck.replay import PULL_MANIFEST

ABOVE = 5  # folders above a file in which pull's list may lie


def is_pulled(folder: Path) -> bool:
    """Whether pull's list lies in this folder or a few levels above it."""
    return any((above / PULL_MANIFEST).is_file() for above in [folder, *list(folder.parents)[:ABOVE]])
