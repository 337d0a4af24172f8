"""Writes a trainer's batch without the prompts that have a flagged row, and describes the change."""

from __future__ import annotations

from pathlib import Path

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.replay.placement import Placement, RunRequirements, describe_smaller_batch
from rolloutdeck.replay.plan import PlanFile
from rolloutdeck.safe_pickle import rewrite


def write_without_prompts(
    requirements: RunRequirements, placement: Placement, file: PlanFile, source: Path, target: Path
) -> str:
    """Writes `target` and returns a message about what was excluded.

    Raises SafePickleError, ImportError (numpy), and NotReplayableError if the trainer needs another number of rows.
    """
    excluded = rewrite.exclude_prompts(source, target, placement.without[file.name], placement.answers)
    rows = requirements.facts.get("rows")
    if not requirements.repeats and isinstance(rows, int) and excluded.rows_left != rows:
        raise NotReplayableError(
            f"{file.name} has {excluded.rows_left} rows without its flagged prompts, and {requirements.trainer} "
            f"needs {rows}. Withdraw the flags, or configure that many prompts per step"
        )
    return _describe_exclusion(requirements, placement, file, excluded)


def _describe_exclusion(
    requirements: RunRequirements, placement: Placement, file: PlanFile, excluded: rewrite.ExclusionResult
) -> str:
    """Returns what was excluded from a file, and why it is more than the flagged samples."""
    flagged, prompts = len(placement.without[file.name]), excluded.prompts + excluded.prompts_left
    share = (
        f"{excluded.prompts} of its {prompts} prompts ({excluded.rows} of {excluded.rows + excluded.rows_left} rows)"
    )
    smaller_batch = describe_smaller_batch(requirements)
    effect = f" {smaller_batch[0].upper()}{smaller_batch[1:]}." if requirements.repeats else ""
    return (
        f"{file.name} of {placement.entry} is replayed without {share}: these prompts have {flagged} flagged "
        f"{'sample' if flagged == 1 else 'samples'}. All answers to a prompt are excluded, because advantages compare "
        f"them. Rolloutdeck wrote this file; its other rows are unchanged.{effect}"
    )
