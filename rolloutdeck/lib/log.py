"""What the trainer side tells the person: each thing once, through `logging`."""

from __future__ import annotations

import contextlib
import logging
import sys

logger = logging.getLogger("rolloutdeck")


def log_or_print(message: str, *values: object) -> None:
    """A word that the person waits for. Where nobody has set up logging Python shows warnings only: then on stderr."""
    if logger.hasHandlers():
        logger.info(message, *values)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
        sys.stderr.write(f"{message % values}\n")


class OnceLogger:
    """Says a thing once until it is forgotten; safe to call from every thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def once(self, key: str, message: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(message, *values)

    def forget(self, key: str) -> bool:
        """The thing is over; True if it had been said."""
        known = key in self._said
        self._said.discard(key)
        return known
