"""Log messages for the user of a trainer."""

from __future__ import annotations

import contextlib
import logging
import sys

logger = logging.getLogger("rolloutdeck")


def log_or_print(message: str, *values: object) -> None:
    """Logs a message for the user; prints it to stderr if logging is not configured, which shows only warnings."""
    if logger.hasHandlers():
        logger.info(message, *values)
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or None
        sys.stderr.write(f"{message % values}\n")


class OnceLogger:
    """Logs each warning once until it is reset. Safe to call from every thread."""

    def __init__(self) -> None:
        self._logged_keys: set[str] = set()

    def log_once(self, key: str, message: str, *values: object) -> None:
        if key not in self._logged_keys:
            self._logged_keys.add(key)
            logger.warning(message, *values)

    def reset(self, key: str) -> bool:
        """Lets the warning `key` be logged again. Returns whether it was logged."""
        was_logged = key in self._logged_keys
        self._logged_keys.discard(key)
        return was_logged
