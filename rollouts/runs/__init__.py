"""The run list: filters, groups, bulk actions, trash, and the events of one run.

Depends on: indexing, ingest, live and projects.
Invariant: a run in the trash can be restored for 7 days. A run with pins is not deleted.
"""

from rollouts.runs.actions import (
    TRASH_RETENTION,
    archive_runs,
    load_run_sizes,
    move_run_to_trash,
    move_runs_to_trash,
    reindex_runs,
    restore_run,
    tag_runs,
)
from rollouts.runs.listing import (
    compare_config_keys,
    filter_runs,
    flatten_config,
    format_config_value,
    load_run_statuses,
    parse_run_filter,
)
from rollouts.runs.timeline import EVENT_KINDS, RunEvent, RunTimeline, load_run_timeline

__all__ = [
    "EVENT_KINDS", "RunEvent", "RunTimeline", "TRASH_RETENTION", "archive_runs", "compare_config_keys",
    "filter_runs", "flatten_config", "format_config_value", "load_run_sizes", "load_run_statuses",
    "load_run_timeline", "move_run_to_trash", "move_runs_to_trash", "parse_run_filter", "reindex_runs",
    "restore_run", "tag_runs",
]  # fmt: skip
