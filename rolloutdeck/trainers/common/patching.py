"""How to get between the lines of a library that has no hook there, without hurting it."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from rolloutdeck.lib import OnceLogger

P = ParamSpec("P")
T = TypeVar("T")

once_logger = OnceLogger()
MARK = "_rolloutdeck"


def patch_when_imported(name: str, patcher: str) -> None:
    """Calls `patch(module)` of the module `patcher` once `name` is imported: now if it is, else right after."""
    if name in sys.modules:
        patch(sys.modules[name], patcher)
        return
    if not any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchingFinder())
    PatchingFinder.waiting[name] = patcher


class PatchingFinder:
    """Lets Python's own finder find a module, and patches it after it has run. Only those that are waited for."""

    waiting: dict[str, str] = {}

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in cls.waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if patcher := cls.waiting.pop(name, None):
                patch(module, patcher)

        loader.exec_module = exec_module
        return spec


def patch(module: ModuleType, patcher: str) -> None:
    try:
        importlib.import_module(patcher).patch(module)
    except Exception as error:
        once_logger.log_once(f"patch {patcher}", "Rolloutdeck can't record all of %s: %s", module.__name__, error)


def wrap_method(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces `owner.name` by `make(original)`, once. Says so when this version has no such name."""
    original = getattr(owner, name, None)
    if original is None:
        where = getattr(owner, "__name__", owner)
        library = getattr(owner, "__module__", str(where)).partition(".")[0]
        what = f"{where}.{name}"
        once_logger.log_once(
            f"no {what}", "This %s has no %s: what Rolloutdeck takes from it is missing.", library, what
        )
        return
    if getattr(original, MARK, False):
        return
    made = functools.wraps(original)(make(original))
    setattr(made, MARK, True)
    setattr(owner, name, made)


class ReplayStoppedError(RuntimeError):
    """A person asked for it: a replay plan that says to stop where a pin can't be replayed. The only way we raise."""


def catch_errors(function: Callable[P, T]) -> Callable[P, T | None]:
    """An error of ours costs what the call would have recorded, and one warning; the caller gets None."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except ReplayStoppedError:
            raise
        except Exception as error:
            name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
            what = f"{type(error).__name__}: {error}"
            once_logger.log_once(
                f"{name} {what}", "Training goes on, but Rolloutdeck lost something in %s: %s", name, what
            )
            return None

    return call


@catch_errors
def _told(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def bind_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a call says, by the names of the function's own parameters, whatever a version of the library added to
    them; {} where the call is none."""
    return _told(function, args, kwargs) or {}
