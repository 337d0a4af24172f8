"""Why `up` does not start."""

from __future__ import annotations


class StartRefusedError(Exception):
    """One sentence for the person at the terminal: what is in the way, and which option changes it. Exit status 2."""


class StartFailedError(Exception):
    """A part did not start; the message ends with the last lines of its log. Exit status 1."""
