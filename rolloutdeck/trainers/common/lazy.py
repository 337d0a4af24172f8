"""Public names of a trainer's package that are imported at their first use: the trainer's own processes and most
commands need none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(module: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `places` are modules below `rolloutdeck.trainers`, each with its
    names."""

    def find(name: str) -> Any:
        for place, names in places.items():
            if name in names:
                return getattr(importlib.import_module(f"rolloutdeck.trainers.{place}"), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
