"""The errors of `rolloutdeck up`."""

from __future__ import annotations


class StartRefusedError(Exception):
    """A check failed. The message says why and names the option to change. Exit status 2."""


class StartFailedError(Exception):
    """A program did not start. The message ends with the last lines of its log. Exit status 1."""
