"""verl's own code with another `torch.load`: what it does with a dump stays as verl has it, the reading is ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any


class Torch:
    """torch as a function of verl's sees it, but for `load`."""

    def __init__(self, torch: Any, load: Callable[[Path], Any]) -> None:
        self._torch = torch
        self._load = load

    def load(self, path: Any, **_: Any) -> Any:
        return self._load(Path(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def has_torch_load(function: Any) -> bool:
    """Whether the function itself calls `torch.load`, so that it can be given another."""
    return isinstance(function, FunctionType) and {"torch", "load"} <= {*function.__code__.co_names}


def replace_torch_load(function: FunctionType, load: Callable[[Path], Any]) -> FunctionType:
    """The function, with `load(path)` for `torch.load`; the module that it comes from is not touched."""
    names = {**function.__globals__, "torch": Torch(function.__globals__["torch"], load)}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made
