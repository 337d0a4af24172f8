"""Code that several trainers share: patching, sessions, pinned steps, token selection, search for step files.

Depends on: `rolloutdeck.client`, `rolloutdeck.lib`, `rolloutdeck.replay` and `rolloutdeck.trainer_api`.
Invariant: an error of a plug-in is logged once and never reaches the training.
Names are imported when they are first used: a trainer pays for what it imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolloutdeck.lazy import lazy_names

if TYPE_CHECKING:
    from rolloutdeck.trainers.common.dataset_columns import add_columns
    from rolloutdeck.trainers.common.equal_samples import EqualSampleMarker
    from rolloutdeck.trainers.common.guidance import GuidanceTally, MatchedRows, follows_guidance, match_rows
    from rolloutdeck.trainers.common.patching import (
        ReplayStoppedError,
        bind_arguments,
        catch_errors,
        once_logger,
        patch_when_imported,
        wrap_method,
    )
    from rolloutdeck.trainers.common.pinned_step import (
        build_selection_fields,
        check_pinned_step,
        download_pinned_file,
        report_not_replayed,
        step_downloads,
    )
    from rolloutdeck.trainers.common.plan_request import PlanRequest
    from rolloutdeck.trainers.common.session import EXIT_SECONDS, TrainerSession, get_session, open_trainer_run
    from rolloutdeck.trainers.common.step_files import is_pulled, mark_pulled, walk_folders
    from rolloutdeck.trainers.common.token_rows import TokenSample, copy_tokenizer
    from rolloutdeck.trainers.common.token_selection import TokenBudget, TokenSelection
    from rolloutdeck.trainers.common.values import drop_none, parse_int

__all__ = [
    "EXIT_SECONDS", "EqualSampleMarker", "GuidanceTally", "MatchedRows", "PlanRequest", "ReplayStoppedError",
    "TokenBudget", "TokenSample", "TokenSelection", "TrainerSession", "add_columns", "bind_arguments", "catch_errors",
    "check_pinned_step", "copy_tokenizer", "build_selection_fields", "download_pinned_file", "drop_none",
    "follows_guidance", "get_session", "is_pulled", "mark_pulled", "match_rows", "once_logger", "open_trainer_run",
    "parse_int", "patch_when_imported", "report_not_replayed", "step_downloads", "walk_folders", "wrap_method",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "dataset_columns": ("add_columns",),
    "equal_samples": ("EqualSampleMarker",),
    "guidance": ("GuidanceTally", "MatchedRows", "follows_guidance", "match_rows"),
    "patching": (
        "ReplayStoppedError", "bind_arguments", "catch_errors", "once_logger", "patch_when_imported", "wrap_method",
    ),
    "pinned_step": (
        "check_pinned_step", "build_selection_fields", "download_pinned_file", "report_not_replayed", "step_downloads",
    ),
    "plan_request": ("PlanRequest",),
    "session": ("EXIT_SECONDS", "TrainerSession", "get_session", "open_trainer_run"),
    "step_files": ("is_pulled", "mark_pulled", "walk_folders"),
    "token_rows": ("TokenSample", "copy_tokenizer"),
    "token_selection": ("TokenBudget", "TokenSelection"),
    "values": ("drop_none", "parse_int"),
})  # fmt: skip
