"""Replay plans: revisions, bindings, compatibility, exclusion of flagged samples, outcomes per step.

Depends on: pins, ingest, live, metrics, projects and samples.
Invariant: a revision is immutable. A bound run never sees a later edit, and its bytes stay until it ends.
"""

from rollouts.replay.bindings import bind_run, resolve_run_revision
from rollouts.replay.compatibility import (
    EntryCompatibility,
    check_entry_compatibility,
    check_plan_compatibility,
    load_run_facts,
)
from rollouts.replay.exclusion import ExcludedRows, explain_refusal, find_exclusions
from rollouts.replay.outcomes import ReplayTimeline, ReplayTimelineStep, load_replay_timeline, record_replay_outcome
from rollouts.replay.overrides import override_check, restore_check
from rollouts.replay.plans import (
    DEFAULT_PLAN_NAME,
    PLAN_NAME_PATTERN,
    can_mask_rows,
    find_current_revision,
    find_first_steps,
    find_loading_trainer,
    find_plan_trainer,
    find_revision,
    has_unknown_trainer,
    list_revisions,
    load_plan_entries,
    parse_plan_name,
    pin_into_plan,
    save_plan,
)

__all__ = [
    "DEFAULT_PLAN_NAME", "EntryCompatibility", "ExcludedRows", "PLAN_NAME_PATTERN", "ReplayTimeline",
    "ReplayTimelineStep", "bind_run", "can_mask_rows", "check_entry_compatibility", "check_plan_compatibility",
    "explain_refusal", "find_current_revision", "find_exclusions", "find_first_steps", "find_loading_trainer",
    "find_plan_trainer", "find_revision", "has_unknown_trainer", "list_revisions", "load_plan_entries",
    "load_replay_timeline", "load_run_facts", "override_check", "parse_plan_name", "pin_into_plan",
    "record_replay_outcome", "resolve_run_revision", "restore_check", "save_plan",
]  # fmt: skip
