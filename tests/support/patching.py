"""Replaces a constant or a function in all modules that import it."""

from __future__ import annotations

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
