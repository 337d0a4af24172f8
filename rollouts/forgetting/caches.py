"""Clears the caches in memory of what was forgotten: on this machine at once, on the others within `LOOK_SECONDS`.

Copies of a bucket's files that nobody used for a day go too, on machines that add no files to their cache.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Final

from django.conf import settings
from django.db import DatabaseError
from django.db.models import Max

from rollouts.lib import clear_caches, clear_outdated
from rollouts.models import ForgottenPrompt
from rollouts.storage import remove_unused_copies

LOOK_SECONDS: Final = 30.0


class DatabaseLook:
    """When this process looked last, and what it found. Only servers whose files are in a bucket have several machines;
    the processes of one machine share a file (`clear_outdated`)."""

    def __init__(self) -> None:
        self.at = -LOOK_SECONDS
        self.newest: datetime | None = None
        self.is_first = True

    def is_due(self) -> bool:
        if time.monotonic() - self.at < LOOK_SECONDS:
            return False
        self.at = time.monotonic()
        return True

    def has_news(self) -> bool:
        try:
            newest = ForgottenPrompt.objects.aggregate(newest=Max("finished_at"))["newest"]
        except DatabaseError:  # the request or task fails with the same error
            return False
        is_news, self.is_first = newest != self.newest and not self.is_first, False
        self.newest = newest
        return is_news


look = DatabaseLook()


def clear_forgotten_texts() -> None:
    """Call it before a request or a task."""
    clear_outdated()
    if settings.STORAGE_URL and look.is_due():
        if look.has_news():
            clear_caches()
        remove_unused_copies()
