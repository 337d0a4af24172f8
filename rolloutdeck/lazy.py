"""Public names of a package that are imported when they are first used: a trainer pays for what it imports."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package. `modules`: module below the package -> its public names."""

    def import_name(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return import_name
