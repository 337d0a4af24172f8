"""The run list: queries about runs, groups of runs, bulk actions, trash, and the events of one run.

Depends on: indexing, ingest, live, metrics, projects and query.
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
from rollouts.runs.completion import complete_run_query
from rollouts.runs.config_differences import (
    ConfigChange,
    ConfigKey,
    dump_overrides,
    dump_yaml,
    load_config_keys,
)
from rollouts.runs.configs import (
    ConfigValue,
    RunConfig,
    RunId,
    count_config_values,
    format_config_value,
    list_differing_settings,
    load_run_configs,
    map_versions,
)
from rollouts.runs.disk_usage import list_run_usage, sum_project_usage
from rollouts.runs.events import EVENT_KINDS, RunEvent, RunEvents, load_run_events
from rollouts.runs.listing import load_run_statuses
from rollouts.runs.run_groups import (
    MAX_GROUP_RUNS,
    RunGroup,
    average_curves,
    compute_group_curves,
    find_run_group,
    list_group_names,
)
from rollouts.runs.sample_search import MAX_SHOWN_SAMPLES, RunMatches, search_runs
from rollouts.runs.search import MAX_SEARCHED_RUNS, RunResult, TermEffect, count_matches, find_runs
from rollouts.runs.statistics import RunStatistics
from rollouts.runs.table import RunTable
from rollouts.runs.vocabulary import RUN_VOCABULARY

__all__ = [
    "EVENT_KINDS", "MAX_GROUP_RUNS", "MAX_SEARCHED_RUNS", "MAX_SHOWN_SAMPLES", "RUN_VOCABULARY",
    "TRASH_RETENTION", "ConfigChange", "ConfigKey", "ConfigValue", "RunConfig", "RunEvent", "RunEvents",
    "RunGroup", "RunId", "RunMatches", "RunResult", "RunStatistics", "RunTable", "TermEffect", "archive_runs",
    "average_curves", "complete_run_query", "compute_group_curves", "count_config_values", "count_matches",
    "dump_overrides", "dump_yaml", "find_run_group", "find_runs", "format_config_value",
    "list_differing_settings", "list_group_names", "list_run_usage", "load_config_keys", "load_run_configs",
    "load_run_events", "load_run_sizes", "load_run_statuses", "map_versions", "move_run_to_trash",
    "move_runs_to_trash", "reindex_runs", "restore_run", "search_runs", "sum_project_usage", "tag_runs",
]  # fmt: skip
