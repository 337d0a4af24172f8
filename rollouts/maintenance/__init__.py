"""Periodic work of the workers: finds due work, removes expired data (the sweep), and compacts body files.

Depends on: live, metrics, pins, runs, samples and storage, whose rows hold the due work.
Invariant: due work is found from rows and stored bytes, so a lost message delays it by at most one sweep.
"""

from rollouts.maintenance.compaction import (
    compact_body_files,
    delete_orphan_bodies,
    find_body_files_with_unused_rows,
    find_splits_to_compact,
    remove_unused_rows,
)
from rollouts.maintenance.disk_usage import measure_due_runs, measure_run
from rollouts.maintenance.sweep import (
    delete_orphan_blobs,
    delete_orphan_images,
    delete_stale_uploads,
    delete_unpinned_bytes,
    empty_trash,
    find_due_artifacts,
    find_runs_with_due_metrics,
    release_dead_claims,
    take_overdue_dumps,
    take_waiting_dumps,
)

__all__ = [
    "compact_body_files", "delete_orphan_blobs", "delete_orphan_images", "delete_orphan_bodies", "delete_stale_uploads",
    "delete_unpinned_bytes", "empty_trash", "find_body_files_with_unused_rows", "find_due_artifacts",
    "find_splits_to_compact", "find_runs_with_due_metrics", "measure_due_runs", "measure_run", "release_dead_claims",
    "remove_unused_rows", "take_overdue_dumps", "take_waiting_dumps",
]  # fmt: skip
