"""What the trainer side tells the person: each thing once, through `logging`."""

from __future__ import annotations

import contextlib
import logging
import sys

log = logging.getLogger("rolloutdeck")


def aloud(message: str, *values: object) -> None:
    """A word that the person waits for. Where nobody has set up logging Python shows warnings only: then on stderr."""
    if log.hasHandlers():
        log.info(message, *values)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
        sys.stderr.write(f"{message % values}\n")


class Voice:
    """Says a thing once until it is forgotten; safe to call from every thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, key: str, message: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning(message, *values)

    def forget(self, key: str) -> bool:
        """The thing is over; True if it had been said."""
        known = key in self._said
        self._said.discard(key)
        return known
