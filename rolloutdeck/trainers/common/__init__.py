"""Code that several trainer plug-ins share: patching, sessions, pinned steps, token selection.

Depends on: `rolloutdeck.client` and `rolloutdeck.replay`.
Invariant: an error of a plug-in is logged once and never reaches the training.
"""

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

__all__ = [
    "EXIT_SECONDS", "ReplayStoppedError", "TokenSelection", "TrainerSession", "bind_arguments", "catch_errors",
    "check_pinned_step", "download_pinned_file", "is_pulled", "lazy_names", "once_logger", "patch_when_imported",
    "report_not_replayed", "wrap_method",
]  # fmt: skip
