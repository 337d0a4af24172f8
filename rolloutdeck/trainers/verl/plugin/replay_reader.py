"""Runs verl's own code with another `torch.load`: verl processes the dump, the safe reader reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any


class TorchProxy:
    """torch with another `load`."""

    def __init__(self, torch: Any, load: Callable[[Path], Any]) -> None:
        self._torch = torch
        self._load = load

    def load(self, path: Any, **_: Any) -> Any:
        return self._load(Path(path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def has_torch_load(function: Any) -> bool:
    """Returns whether the function itself calls `torch.load`, so that it can be replaced."""
    return isinstance(function, FunctionType) and {"torch", "load"} <= {*function.__code__.co_names}


def replace_torch_load(function: FunctionType, load: Callable[[Path], Any]) -> FunctionType:
    """Returns a copy of the function that calls `load(path)` instead of `torch.load`. Its module is not changed."""
    names = {**function.__globals__, "torch": TorchProxy(function.__globals__["torch"], load)}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
