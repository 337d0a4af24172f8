"""The list of files to remove, which survives a kill."""

from __future__ import annotations

from collections.abc import Iterable

from rollouts.models import ForgottenPrompt


def add_pending(forgotten: ForgottenPrompt, keys: Iterable[str]) -> None:
    """Records, in the caller's transaction, files that have to be removed after it."""
    forgotten.pending = sorted({*forgotten.pending, *keys})
    ForgottenPrompt.objects.filter(pk=forgotten.pk).update(pending=forgotten.pending)
