"""Checks whether a run can replay the entries of a plan: compares the facts of each pin with the facts of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rolloutdeck.errors import UsageError
from rolloutdeck.protocol import FactDifference, compare_facts, is_incompatible
from rolloutdeck.trainer_api import TRAINERS, load_trainer
from rolloutdeck.trainer_config import flatten_settings, resolve_references
from rollouts.models import Artifact, Entry, Revision, Run
from rollouts.replay import exclusion
from rollouts.replay.plans import load_plan_entries
from rollouts.replay.selection import PlanSelector

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@dataclass(frozen=True, slots=True)
class EntryCompatibility:
    """`artifacts` have the role that the run loads, else all roles. `excluded` are the rows that the plan selects;
    `action` is what happens to them: one of keep, mask, drop, regenerate."""

    entry: Entry
    artifacts: tuple[Artifact, ...]
    differences: tuple[FactDifference, ...]
    excluded: exclusion.PinExclusion = exclusion.NO_EXCLUSION
    action: str = "keep"

    @property
    def refused(self) -> bool:
        return is_incompatible(self.differences)


def check_plan_compatibility(
    revision: Revision | None, facts: Mapping[str, Any], reader: User | None = None, *, is_shown: bool = False
) -> list[EntryCompatibility]:
    """Compares each entry with the facts of a run. A refusal that the project has overridden is a warning.

    `reader`, `is_shown`: see `PlanSelector`. Raises StorageUnavailableError.
    """
    entries = load_plan_entries(revision)
    overridden = revision.plan.project.loosened if revision else {}
    selector = build_selector(revision, reader, is_shown=is_shown)
    on_selected = selector.on_selected
    if not selector.selects:  # a plan that keeps flagged samples counts them all the same
        selector = replace(exclusion.DEFAULT_SELECTOR, reader=reader, is_shown=is_shown)
    exclusions = exclusion.find_exclusions((entry.pin for entry in entries), selector)
    return [
        check_entry_compatibility(entry, facts, overridden, exclusions.get(entry.pin_id), on_selected)
        for entry in entries
    ]


def check_entry_compatibility(
    entry: Entry,
    facts: Mapping[str, Any],
    overridden: Collection[str],
    excluded: exclusion.PinExclusion | None = None,
    on_selected: str = "keep",
) -> EntryCompatibility:
    """Compares an entry with the facts of a run. Unless selected samples are kept, compares what remains of its
    artifact."""
    excluded = excluded or exclusion.NO_EXCLUSION
    pinned = sorted(entry.pin.artifacts.all(), key=lambda artifact: (artifact.step, artifact.pk))
    artifacts = [artifact for artifact in pinned if artifact.role == facts.get("role")] or pinned
    rows = excluded.artifacts.get(artifacts[0].pk) if artifacts else None
    if on_selected != "keep" and rows and not rows.is_fully_selected:
        differences = exclusion.compare_remaining_facts(artifacts[0], rows, facts, overridden)
    else:
        differences = compare_facts(artifacts[0].facts if artifacts else {}, facts, overridden)
    action = exclusion.get_selected_action(artifacts[0], on_selected) if artifacts else on_selected
    return EntryCompatibility(entry, tuple(artifacts), tuple(differences), excluded, action)


def build_selector(revision: Revision | None, reader: User | None, *, is_shown: bool) -> PlanSelector:
    return PlanSelector(revision.on_selected, revision.selected_by, reader, is_shown) if revision else PlanSelector()


def load_run_facts(run: Run) -> dict[str, Any]:
    """Returns the known facts of a run: those that it reported, else of its config, else of its newest files.

    Checked files are preferred. The dataset of a file is not used: it is the prompts of the file's own step.
    """
    artifacts = run.artifacts.exclude(role="tokenizer").order_by("-step", "-pk")
    newest = artifacts.filter(state=Artifact.State.READY).first() or artifacts.first()
    file_facts = {name: fact for name, fact in newest.facts.items() if name != "dataset"} if newest else {}
    return {**file_facts, **read_config_facts(run), **run.facts}


def read_config_facts(run: Run) -> dict[str, Any]:
    """Returns the facts in the run's config, if a trainer module understands it."""
    settings = resolve_references(dict(flatten_settings(run.config))) if isinstance(run.config, dict) else {}
    for name in ((run.framework,) if run.framework in TRAINERS else TRAINERS) if settings else ():
        with suppress(UsageError, ValueError, TypeError, ArithmeticError):
            return dict(load_trainer(name).read_requirements(settings).facts)
    return {}
