"""Code that several trainer plug-ins share: patching, sessions, pinned steps, token selection.

Depends on: `rolloutdeck.client` and `rolloutdeck.replay`.
Invariant: an error of a plug-in is logged once and never reaches the training.
Names are imported when they are first used: a trainer pays for what it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.lazy import lazy_names

if TYPE_CHECKING:
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
    "check_pinned_step", "download_pinned_file", "drop_none", "is_pulled", "once_logger", "parse_int",
    "patch_when_imported", "report_not_replayed", "wrap_method",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "patching": (
        "ReplayStoppedError", "bind_arguments", "catch_errors", "once_logger", "patch_when_imported", "wrap_method",
    ),
    "pinned_step": ("check_pinned_step", "download_pinned_file", "report_not_replayed"),
    "pulled": ("is_pulled",),
    "session": ("EXIT_SECONDS", "TrainerSession"),
    "token_selection": ("TokenSelection",),
    "values": ("drop_none", "parse_int"),
})  # fmt: skip
