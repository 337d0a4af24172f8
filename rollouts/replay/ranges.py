"""Pins a range of steps at once and adds all of them to a plan, in one revision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.utils.translation import gettext as _

from rollouts.errors import InvalidInputError, NotFoundError
from rollouts.models import Artifact, Pin, Revision, Run
from rollouts.pins import explain_nothing_to_pin, pin_step
from rollouts.replay.plans import (
    DEFAULT_PLAN_NAME,
    check_entries,
    create_revision,
    find_current_revision,
    lock_plan,
    parse_plan_name,
    serialize_revision,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_RANGE_STEPS = 500


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """`targets`: {target step: pin} that are in the plan now. `skipped`: {step: reason}. `revision`: the newest one."""

    targets: Mapping[int, Pin]
    skipped: Mapping[int, str]
    revision: Revision | None


@transaction.atomic
def pin_range(
    run: Run,
    first: int,
    last: int,
    by: User,
    *,
    target: int | None = None,
    plan: str = DEFAULT_PLAN_NAME,
    step_kind: str = "global_step",
    note: str | None = None,
) -> PinnedRange:
    """Pins the training steps `first` to `last` and replays them from step `target` on, by default at the same steps.

    Steps without files, and targets at which the plan replays another pin, are skipped. Raises InvalidInputError, and
    NotFoundError if no step of the range can be pinned.
    """
    if last < first:
        raise InvalidInputError(_("The last step must not be before the first step."), "last")
    if last - first >= MAX_RANGE_STEPS:
        raise InvalidInputError(_("At most {limit} steps can be pinned at once.").format(limit=MAX_RANGE_STEPS), "last")
    locked = lock_plan(run.project, parse_plan_name(plan))
    newest = find_current_revision(run.project, locked.name)
    settings: dict[str, Any] = serialize_revision(newest) if newest else {"action": "cache"}
    targets: dict[int, int] = settings.pop("targets", {})
    shift = 0 if target is None else target - first
    added: dict[int, Pin] = {}
    skipped: dict[int, str] = {}
    has_files = False
    for step in range(first, last + 1):
        try:
            pin, _is_new = pin_step(run, step, by, step_kind=step_kind, note=note)
        except NotFoundError as error:
            skipped[step] = str(error)
            continue
        has_files = True
        if targets.get(step + shift, pin.pk) == pin.pk:
            added[step + shift] = pin
        else:
            text = _("Step {step} of the plan already replays another pin; remove that one first.")
            skipped[step] = text.format(step=step + shift)
    if not has_files:
        raise NotFoundError(explain_empty_range(run, first, last, step_kind), "first")
    check_entries(run.project, [(pin, step) for step, pin in added.items()])
    wanted = targets | {step: pin.pk for step, pin in added.items()}
    if wanted == targets:
        return PinnedRange(added, skipped, newest)
    revision = create_revision(locked, (newest.number if newest else 0) + 1, by, settings, wanted)
    return PinnedRange(added, skipped, revision)


def explain_empty_range(run: Run, first: int, last: int, step_kind: str) -> str:
    files = Artifact.objects.filter(run=run, split="train").exclude(role="tokenizer")
    steps = set(files.values_list("step_kind", "step"))
    known = sorted(step for kind, step in steps if kind == step_kind)
    if not known and steps:
        text = _("The steps of this run with files are of the kind {kind}. Set `step_kind` to pin them.")
        return text.format(kind=", ".join(sorted({kind for kind, _step in steps})))
    if not known:
        return explain_nothing_to_pin(run, first, None)
    text = _("No step from {first} to {last} has files that a trainer can load. Steps with files: {low} to {high}.")
    if len(known) == 1:
        text = _("No step from {first} to {last} has files that a trainer can load. Step with files: {low}.")
    return text.format(first=first, last=last, low=known[0], high=known[-1])
