"""Whether a run can replay the entries of a plan: each entry's artifacts compared with what is known of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rolloutdeck.errors import UsageError as NotUnderstood
from rolloutdeck.protocol import FactDifference, compare_facts, is_incompatible
from rolloutdeck.trainer_api import TRAINERS, load_trainer
from rolloutdeck.trainer_config import flatten_settings, resolve_references
from rollouts.models import Artifact, Entry, Revision, Run
from rollouts.replay import exclusion
from rollouts.replay.plans import load_plan_entries


@dataclass(frozen=True, slots=True)
class EntryCompatibility:
    """An entry beside a run that would replay it. `artifacts` are those of the role that the run loads, else all;
    `excluded` is what is flagged bad in them."""

    entry: Entry
    artifacts: tuple[Artifact, ...]
    differences: tuple[FactDifference, ...]
    excluded: exclusion.PinExclusion = exclusion.NO_EXCLUSION

    @property
    def refused(self) -> bool:
        return is_incompatible(self.differences)


def check_plan_compatibility(revision: Revision | None, facts: Mapping[str, Any]) -> list[EntryCompatibility]:
    """Compares each entry with the facts of a run. A refusal that the project has overridden is a warning."""
    entries = load_plan_entries(revision)
    loosened = revision.plan.project.loosened if revision else {}
    exclusions = exclusion.find_exclusions(entry.pin for entry in entries)
    exclude_flagged = bool(revision and revision.exclude_flagged)
    return [
        check_entry_compatibility(entry, facts, loosened, exclusions.get(entry.pin_id), exclude_flagged)
        for entry in entries
    ]


def check_entry_compatibility(
    entry: Entry,
    facts: Mapping[str, Any],
    loosened: Collection[str],
    excluded: exclusion.PinExclusion | None = None,
    leave: bool = False,
) -> EntryCompatibility:
    """`leave`: what is flagged is left out, so that what is left of the artifact is compared."""
    excluded = excluded or exclusion.NO_EXCLUSION
    held = sorted(entry.pin.artifacts.all(), key=lambda one: (one.step, one.pk))
    fitting = [one for one in held if one.role == facts.get("role")] or held
    rows = excluded.artifacts.get(fitting[0].pk) if fitting else None
    if leave and rows and not rows.whole:
        found = exclusion.compare_remaining_facts(fitting[0], rows, facts, loosened)
    else:
        found = compare_facts(fitting[0].facts if fitting else {}, facts, loosened)
    return EntryCompatibility(entry, tuple(fitting), tuple(found), excluded)


def load_run_facts(run: Run) -> dict[str, Any]:
    """What is known of a run that asks: what its newest files say, over that its config, and over that its own word.

    Files that were checked come before those that only a manifest speaks of. Their prompts are those of their own step,
    not of the one that would be replayed.
    """
    told = run.artifacts.exclude(role="tokenizer").order_by("-step", "-pk")
    own = told.filter(state=Artifact.State.READY).first() or told.first()
    files = {name: fact for name, fact in own.facts.items() if name != "dataset"} if own else {}
    return {**files, **configured(run), **run.facts}


def configured(run: Run) -> dict[str, Any]:
    """What the run's config says, where one of the trainers' modules understands it."""
    settings = resolve_references(dict(flatten_settings(run.config))) if isinstance(run.config, dict) else {}
    known = TRAINERS
    for name in ((run.framework,) if run.framework in known else known) if settings else ():
        with suppress(NotUnderstood, ValueError, TypeError, ArithmeticError):
            return dict(load_trainer(name).read_requirements(settings).facts)
    return {}
