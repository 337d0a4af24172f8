"""Lazy imports of the public names of a trainer package.

The trainer's own processes and most commands need none of these names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(module: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of the package `module`. `modules`: module below `rolloutdeck.trainers` -> its public
    names."""

    def import_name(name: str) -> Any:
        for submodule, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"rolloutdeck.trainers.{submodule}"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return import_name
