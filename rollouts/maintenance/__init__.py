"""Periodic work of the workers: finds due work, removes expired data (the sweep), and compacts body files.

Depends on: live, metrics, pins, runs, samples and storage, whose rows hold the due work.
Invariant: due work is found from rows and stored bytes, so a lost message delays it by at most one sweep.
"""

from rollouts.maintenance.compaction import compact_body_files, delete_orphan_bodies, find_due_body_files
from rollouts.maintenance.sweep import (
    delete_orphan_blobs,
    delete_stale_uploads,
    delete_unpinned_bytes,
    empty_trash,
    fail_exhausted_dumps,
    find_due_artifacts,
    find_runs_with_due_metrics,
    release_dead_claims,
    take_overdue_dumps,
    take_waiting_dumps,
)

__all__ = [
    "compact_body_files", "delete_orphan_blobs", "delete_orphan_bodies", "delete_stale_uploads",
    "delete_unpinned_bytes", "empty_trash", "fail_exhausted_dumps", "find_due_artifacts", "find_due_body_files",
    "find_runs_with_due_metrics", "release_dead_claims", "take_overdue_dumps", "take_waiting_dumps",
]  # fmt: skip
