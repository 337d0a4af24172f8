"""Flags: one sample or many, with a reason, and undo.

Depends on: live and projects.
Invariant: a flag is withdrawn, never deleted, and follows the sample id through every re-index.
"""

from rollouts.flags.bulk import (
    UNDO_WINDOW,
    UndoResult,
    collect_sample_ids,
    flag_samples,
    undo_flag_action,
    withdraw_flag,
)
from rollouts.flags.flags import can_withdraw_flag, load_flags

__all__ = [
    "UNDO_WINDOW", "UndoResult", "can_withdraw_flag", "collect_sample_ids", "flag_samples", "load_flags",
    "undo_flag_action", "withdraw_flag",
]  # fmt: skip
