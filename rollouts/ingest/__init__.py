"""Arrival of data: creates runs, attempts and dumps from the headers of an upload.

Depends on: live and storage.
Invariant: every operation is idempotent by a natural key. A repeated upload returns the rows that exist.
"""

from rollouts.ingest.attempts import finish_attempt, get_or_create_attempt, record_activity, record_heartbeat
from rollouts.ingest.concurrency import (
    FILES_ATTEMPT_PATTERN,
    RunningAttempt,
    end_attempts,
    list_running_attempts,
    recheck_concurrent_attempts,
)
from rollouts.ingest.contexts import record_context
from rollouts.ingest.dumps import (
    FIRST_SWEEP_DELAY,
    DumpHeader,
    accept_dump,
    find_dump,
    has_lost_bytes,
    requeue_resent_dump,
)
from rollouts.ingest.runs import open_run, parse_tags
from rollouts.ingest.summary import (
    IngestSummary,
    RejectedRow,
    count_rejected_rows,
    list_row_problems,
    summarize_ingest,
)
from rollouts.ingest.superseded_steps import find_copied_steps, mark_superseded_steps

__all__ = [
    "FILES_ATTEMPT_PATTERN", "FIRST_SWEEP_DELAY", "DumpHeader", "IngestSummary", "RejectedRow", "RunningAttempt",
    "accept_dump", "count_rejected_rows", "end_attempts", "find_copied_steps", "find_dump", "finish_attempt",
    "get_or_create_attempt", "has_lost_bytes", "list_row_problems", "list_running_attempts",
    "mark_superseded_steps", "open_run", "parse_tags", "recheck_concurrent_attempts", "record_activity",
    "record_context", "record_heartbeat", "requeue_resent_dump", "summarize_ingest",
]  # fmt: skip
