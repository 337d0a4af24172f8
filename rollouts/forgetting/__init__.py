"""Removes a prompt, its samples and everything that has their texts, from a project and from backups.

Depends on: backup, indexing (leaves the prompt out when it arrives again), maintenance, sharing, storage.
Invariant: a row of `ForgottenPrompt` is written before anything is removed, and names no text. Rows change first, files
are removed after their commit. A command that was killed continues when it is called again.
"""

from rollouts.forgetting.backups import BackupForgetting, forget_in_backups
from rollouts.forgetting.caches import clear_forgotten_texts
from rollouts.forgetting.forget import ForgetResult, forget_prompt
from rollouts.forgetting.traces import TraceReport, find_traces

__all__ = [
    "BackupForgetting", "ForgetResult", "TraceReport", "clear_forgotten_texts", "find_traces", "forget_in_backups",
    "forget_prompt",
]  # fmt: skip
