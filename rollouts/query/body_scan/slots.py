"""Limits how many searches run at the same time on this machine: in total, and of one person.

All processes share the limits. A slot is a locked file (flock(2)). The lock ends with its process, so a killed process
keeps no slot.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from django.conf import settings
from django.utils.translation import gettext as _

from rolloutdeck.lib import try_lock
from rollouts.errors import TooManySearchesError
from rollouts.query.body_scan.request import ScanRequest

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.02


@contextmanager
def take_scan_slot(request: ScanRequest) -> Iterator[None]:
    """Waits until the person and the server may start another scan. Raises TooManySearchesError if it takes longer than
    `settings.MAX_SCAN_WAIT` seconds."""
    if request.person is None:  # pages do not wait for the long searches of workers
        limits, wait = {"workers": settings.MAX_SCANS}, settings.MAX_WORKER_QUERY_SECONDS
    else:
        limits = {f"person-{request.person}": settings.MAX_SCANS_PER_PERSON, "people": settings.MAX_SCANS}
        wait = settings.MAX_SCAN_WAIT
    deadline = monotonic() + wait
    while (locks := lock_slots(limits)) is None:
        request.check_cancelled()
        if monotonic() >= deadline:
            raise TooManySearchesError(_("Your other searches still run. Wait a few seconds, then try again."))
        sleep(POLL_SECONDS)
    with locks:
        yield


def lock_slots(limits: dict[str, int]) -> ExitStack | None:
    """Locks one slot of each name. Returns None, and keeps none, if all slots of a name are taken."""
    with ExitStack() as locks:
        for name, limit in limits.items():
            handle = lock_slot(name, limit)
            if handle is None:
                return None
            if handle >= 0:
                locks.callback(os.close, handle)
        return locks.pop_all()
    return None


def lock_slot(name: str, limit: int) -> int | None:
    """Returns the handle of a locked slot, None if all are taken, -1 if a full disk has no room for the file, or if the
    file system has no locks."""
    folder = Path(settings.DATA_DIR) / "run" / "searches"
    for number in range(limit):
        try:
            handle = open_slot(folder / f"{name}.{number}")
        except OSError as error:
            log.warning("Searches are not limited: %s", error)
            return -1
        locked = try_lock(handle)
        if locked:
            return handle
        os.close(handle)
        if locked is None:
            return -1
    return None


def open_slot(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
