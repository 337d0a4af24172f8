"""Replaces a constant or a function in all modules that import it, and the locks of files."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from types import ModuleType
from typing import Any

import pytest

PACKAGES = ("rolloutdeck", "rollouts", "workers", "dashboard")


def patch_everywhere(patch: pytest.MonkeyPatch, module: ModuleType, name: str, value: Any) -> None:
    """Replaces `module.name` in `module` and in every loaded module of the product that imports it by name."""
    real = vars(module)[name]
    for key, other in list(sys.modules.items()):
        if key.partition(".")[0] in PACKAGES and vars(other).get(name) is real:
            patch.setattr(other, name, value)


def remove_locks(patch: pytest.MonkeyPatch) -> None:
    """Makes locks of files fail, as on some network file systems."""

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "flock", fail)
