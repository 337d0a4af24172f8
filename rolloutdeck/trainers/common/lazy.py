"""A trainer's module in parts: what tells its files is there at once, all else where it is asked for, since a trainer's
own processes and most commands need none of it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def elsewhere(module: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a module: `places` are those beside it, each with the names that it has."""

    def find(name: str) -> Any:
        for place, names in places.items():
            if name in names:
                return getattr(importlib.import_module(f"rolloutdeck.trainers.{place}"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
