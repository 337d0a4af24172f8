"""A batch that a trainer loads without the prompts that hold a flagged row, and the sentence that says so."""

from __future__ import annotations

from pathlib import Path

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.replay.placement import Placement, RunRequirements, describe_smaller_batch
from rolloutdeck.replay.plan import PlanFile
from rolloutdeck.safe_pickle import rewrite


def write_without_prompts(
    asking: RunRequirements, placement: Placement, file: PlanFile, source: Path, target: Path
) -> str:
    """Writes `target`; what was left out of it. Raises SafePickleError, ImportError (numpy), and NotReplayableError
    where the trainer takes another number of rows."""
    left_out = rewrite.exclude_prompts(source, target, placement.without[file.name], placement.answers)
    rows = asking.facts.get("rows")
    if not asking.repeats and isinstance(rows, int) and left_out.rows_left != rows:
        raise NotReplayableError(
            f"{file.name} has {left_out.rows_left} rows without its flagged prompts, and {asking.trainer} "
            f"takes {rows}; withdraw the flags, or ask for that many prompts a step"
        )
    return _said(asking, placement, file, left_out)


def _said(asking: RunRequirements, placement: Placement, file: PlanFile, left_out: rewrite.ExclusionResult) -> str:
    """What was left out of a file, and why it is more than what is flagged."""
    flagged, every = len(placement.without[file.name]), left_out.prompts + left_out.prompts_left
    less = f"{left_out.prompts} of its {every} prompts ({left_out.rows} of {left_out.rows + left_out.rows_left} rows)"
    fewer = (
        f" {describe_smaller_batch(asking)[0].upper()}{describe_smaller_batch(asking)[1:]}." if asking.repeats else ""
    )
    return (
        f"{file.name} of {placement.entry} is replayed without {less}, in which {flagged} flagged "
        f"{'sample is' if flagged == 1 else 'samples are'}: all answers to a prompt go, since advantages compare them. "
        f"The file is written by Rolloutdeck; what it holds of the other rows is what was pinned.{fewer}"
    )
