"""Code that several trainer plug-ins share: patching, sessions, pinned steps, token selection.

Depends on: `rolloutdeck.client` and `rolloutdeck.replay`.
Invariant: an error of a plug-in is logged once and never reaches the training.
Names are imported when they are first used: a trainer pays for what it imports.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutdeck.trainers.common.lazy import lazy_names
    from rolloutdeck.trainers.common.patching import (
        ReplayStoppedError,
        bind_arguments,
        catch_errors,
        once_logger,
        patch_when_imported,
        wrap_method,
    )
    from rolloutdeck.trainers.common.pinned_step import check_pinned_step, download_pinned_file, report_not_replayed
    from rolloutdeck.trainers.common.pulled import is_pulled
    from rolloutdeck.trainers.common.session import EXIT_SECONDS, TrainerSession
    from rolloutdeck.trainers.common.token_selection import TokenSelection
    from rolloutdeck.trainers.common.values import drop_none, parse_int

__all__ = [
    "EXIT_SECONDS", "ReplayStoppedError", "TokenSelection", "TrainerSession", "bind_arguments", "catch_errors",
    "check_pinned_step", "download_pinned_file", "drop_none", "is_pulled", "lazy_names", "once_logger", "parse_int",
    "patch_when_imported", "report_not_replayed", "wrap_method",
]  # fmt: skip

_MODULES = {
    "lazy_names": "lazy",
    "ReplayStoppedError": "patching",
    "bind_arguments": "patching",
    "catch_errors": "patching",
    "once_logger": "patching",
    "patch_when_imported": "patching",
    "wrap_method": "patching",
    "check_pinned_step": "pinned_step",
    "download_pinned_file": "pinned_step",
    "report_not_replayed": "pinned_step",
    "is_pulled": "pulled",
    "EXIT_SECONDS": "session",
    "TrainerSession": "session",
    "TokenSelection": "token_selection",
    "drop_none": "values",
    "parse_int": "values",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
