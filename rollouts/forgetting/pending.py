"""The list of files to remove, which survives a kill."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rollouts.models import ForgottenPrompt
from rollouts.storage import get_data_root


def add_pending(forgotten: ForgottenPrompt, names: Iterable[str]) -> None:
    """Records, in the caller's transaction, files of the data folder that have to be removed after it."""
    forgotten.pending = sorted({*forgotten.pending, *names})
    ForgottenPrompt.objects.filter(pk=forgotten.pk).update(pending=forgotten.pending)


def add_pending_paths(forgotten: ForgottenPrompt, paths: Iterable[Path]) -> None:
    """As `add_pending`, with absolute paths."""
    add_pending(forgotten, [path.relative_to(get_data_root()).as_posix() for path in paths])
