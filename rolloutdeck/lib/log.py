"""Log messages for the user of a trainer."""

from __future__ import annotations

import contextlib
import logging
import sys

logger = logging.getLogger("rolloutdeck")


def log_or_print(message: str, *values: object) -> None:
    """Logs a message that the user must see, and prints it to stderr if no handler would show it.

    Trainers log warnings only, or none at all. A level that was set for the logger `rolloutdeck` itself is respected.
    """
    if logger.level > logging.INFO:
        return
    logger.info(message, *values)
    if not _has_visible_handler():
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed or None
            sys.stderr.write(f"{message % values}\n")


def _has_visible_handler() -> bool:
    """Whether a handler shows messages of level INFO."""
    if not logger.isEnabledFor(logging.INFO):
        return False
    current: logging.Logger | None = logger
    while current is not None:
        for handler in current.handlers:
            if handler.level <= logging.INFO and not isinstance(handler, logging.NullHandler):
                return True
        current = current.parent if current.propagate else None
    return False


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
