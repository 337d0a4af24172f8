"""Replay on the trainer's node: parses the plan, places its files, and writes the folder of `rolloutdeck pull`.

Depends on: `rolloutdeck.protocol`, `rolloutdeck.safe_pickle` and `rolloutdeck.lib`.
Invariant: a step folder is complete or absent, and only files that are loadable are placed.
"""

from rolloutdeck.replay.folder import PULL_MANIFEST, ReplayFolder
from rolloutdeck.replay.placement import (
    Placement,
    RunRequirements,
    build_placements,
    check_regenerated,
    describe_selected,
    describe_skipped_entry,
    find_layout_steps,
    find_regenerated_prompts,
)
from rolloutdeck.replay.plan import DEFAULT_PLAN, PinnedArtifact, PlanEntry, PlanFile, PlanRevision, parse_plan
from rolloutdeck.replay.pull import PlanPull, write_without_prompts

__all__ = [
    "DEFAULT_PLAN", "PULL_MANIFEST", "PinnedArtifact", "Placement", "PlanEntry", "PlanFile", "PlanPull",
    "PlanRevision", "ReplayFolder", "RunRequirements", "build_placements", "check_regenerated", "describe_selected",
    "describe_skipped_entry", "find_regenerated_prompts", "find_layout_steps", "parse_plan", "write_without_prompts",
]  # fmt: skip
