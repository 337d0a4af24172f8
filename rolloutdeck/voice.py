"""What the trainer side tells the person: each thing once, through `logging`, never more."""

from __future__ import annotations

import logging

log = logging.getLogger("rolloutdeck")


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
