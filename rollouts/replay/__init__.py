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
from rollouts.replay.conflicts import find_plan_conflicts
from rollouts.replay.effects import EntryEffect, PromptEffect, SampleEffect, describe_effects
from rollouts.replay.exclusion import ExcludedRows, PinExclusion, explain_refusal, find_exclusions
from rollouts.replay.loading_trainers import (
    check_selected_action,
    find_first_steps,
    find_loading_trainer,
    find_plan_trainer,
    has_unknown_trainer,
    list_supported_actions,
    resolve_action,
)
from rollouts.replay.outcomes import (
    ReplayTimeline,
    ReplayTimelineStep,
    load_generation_seconds,
    load_replay_timeline,
    record_replay_outcome,
)
from rollouts.replay.overrides import override_check, restore_check
from rollouts.replay.plans import (
    DEFAULT_PLAN_NAME,
    PLAN_NAME_PATTERN,
    find_current_revision,
    find_plan_entry,
    find_revision,
    list_plan_names,
    list_revisions,
    load_plan_entries,
    move_entries,
    parse_plan_name,
    pin_into_plan,
    save_plan,
)
from rollouts.replay.preview import (
    PREVIEW_LABELS,
    EntryOutcome,
    EntryPreview,
    PlanContext,
    count_states,
    find_newest_bound_run,
    load_entry_outcomes,
    preview_entries,
)
from rollouts.replay.prompts import record_step_prompts
from rollouts.replay.ranges import MAX_RANGE_STEPS, PinnedRange, pin_range
from rollouts.replay.selection import FLAGGED_RULE, PlanSelector

__all__ = [
    "DEFAULT_PLAN_NAME", "EntryCompatibility", "EntryEffect", "EntryOutcome", "EntryPreview", "ExcludedRows",
    "FLAGGED_RULE", "MAX_RANGE_STEPS", "PLAN_NAME_PATTERN", "PREVIEW_LABELS", "PinExclusion", "PinnedRange",
    "PlanContext", "PlanSelector", "PromptEffect", "ReplayTimeline", "ReplayTimelineStep", "SampleEffect", "bind_run",
    "check_entry_compatibility", "check_plan_compatibility", "check_selected_action", "count_states",
    "describe_effects", "explain_refusal", "find_current_revision", "find_exclusions", "find_first_steps",
    "find_loading_trainer", "find_newest_bound_run", "find_plan_conflicts", "find_plan_entry", "find_plan_trainer",
    "find_revision", "has_unknown_trainer", "list_plan_names", "list_revisions", "list_supported_actions",
    "load_entry_outcomes", "load_generation_seconds", "load_plan_entries", "load_replay_timeline", "load_run_facts",
    "move_entries", "override_check", "parse_plan_name", "pin_into_plan", "pin_range", "preview_entries",
    "record_replay_outcome", "record_step_prompts", "resolve_action", "resolve_run_revision", "restore_check",
    "save_plan",
]  # fmt: skip
