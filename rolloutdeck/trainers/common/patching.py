"""Patches of library functions that have no hook. An error of a patch never reaches the library's caller."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from rolloutdeck.lib import OnceLogger

P = ParamSpec("P")
T = TypeVar("T")

once_logger = OnceLogger()
MARK = "_rolloutdeck"


def patch_when_imported(name: str, patcher: str) -> None:
    """Calls `patch(module)` of the module `patcher` when `name` is imported: now if it already is, else right after its
    import."""
    if name in sys.modules:
        patch(sys.modules[name], patcher)
        return
    if not any(isinstance(finder, PatchingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, PatchingFinder())
    PatchingFinder.waiting[name] = patcher


class PatchingFinder:
    """Import finder that patches the modules in `waiting` (module name -> patcher) right after they ran.

    Python's own finder finds the module. All other modules are not affected.
    """

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
        exec_original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            exec_original(module)
            if patcher := cls.waiting.pop(name, None):
                patch(module, patcher)

        loader.exec_module = exec_module
        return spec


def patch(module: ModuleType, patcher: str) -> None:
    """Calls `patch(module)` of the module `patcher`; logs an error once."""
    try:
        importlib.import_module(patcher).patch(module)
    except Exception as error:
        once_logger.log_once(f"patch {patcher}", "Rolloutdeck can't record all of %s: %s", module.__name__, error)


def wrap_method(owner: Any, name: str, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces `owner.name` by `make_wrapper(original)`, once. Logs a warning if this version has no such name."""
    original = getattr(owner, name, None)
    if original is None:
        owner_name = getattr(owner, "__name__", owner)
        library = getattr(owner, "__module__", str(owner_name)).partition(".")[0]
        message, target = "This %s has no %s: what Rolloutdeck takes from it is missing.", f"{owner_name}.{name}"
        once_logger.log_once(f"no {target}", message, library, target)
        return
    if getattr(original, MARK, False):
        return
    wrapper = functools.wraps(original)(make_wrapper(original))
    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)


class ReplayStoppedError(RuntimeError):
    """The replay plan stops the run because a pin can't be replayed. The only error that reaches the trainer."""


def catch_errors(function: Callable[P, T], on_error: Callable[[], None] | None = None) -> Callable[P, T | None]:
    """Returns `function` with its errors caught: one warning is logged, `on_error` is called and the caller gets
    None."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except ReplayStoppedError:
            raise
        except Exception as error:
            name, description = describe_function(function), f"{type(error).__name__}: {error}"
            message = "Training continues, but Rolloutdeck lost something in %s: %s"
            once_logger.log_once(f"{name} {description}", message, name, description)
            if on_error is not None:
                with suppress(Exception):
                    on_error()
            return None

    return call


def describe_function(function: Callable[..., Any]) -> str:
    """Returns `module.name`; of a `partial`, which has no name, those of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    module, name = (str(getattr(function, attribute, "")) for attribute in ("__module__", "__name__"))
    return f"{module.rpartition('.')[2]}.{name}"


@catch_errors
def _bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def bind_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by the parameter names of `function`, {} if they do not fit.

    Positions differ between versions of a library; names are stable.
    """
    return _bind(function, args, kwargs) or {}
