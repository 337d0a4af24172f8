"""Replay plans: which pin is replayed at which step. Each save is a new revision."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from rolloutdeck.protocol import MISMATCH_ACTIONS, PLAN_ACTIONS
from rolloutdeck.trainer_api import find_loader, first_step, masks_flagged
from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.live import notify_topics
from rollouts.models import Artifact, Entry, Pin, Project, ReplayPlan, Revision, Run
from rollouts.pins import pin_step
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

DEFAULT_PLAN_NAME = "default"
PLAN_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
MOST_ENTRIES = 10_000


def find_current_revision(project: Project, name: str = DEFAULT_PLAN_NAME) -> Revision | None:
    """The newest revision; None while nobody has saved one."""
    return list_revisions(project, name).last()


def list_revisions(project: Project, name: str = DEFAULT_PLAN_NAME) -> QuerySet[Revision]:
    """All that were saved, oldest first."""
    found = Revision.objects.filter(plan__project=project, plan__name=name)
    return found.select_related("plan__project", "user").order_by("number")


def find_revision(project: Project, ref: str) -> Revision | None:
    """The revision that `name`, `name@number` or an empty string (the newest of `default`) means.

    None where `default` was never saved. Raises BadInput, and NotThere for a plan or revision that is not there.
    """
    name, asked = parse_text(ref, "plan", most=120).partition("@")[::2]
    name, wanted = name or DEFAULT_PLAN_NAME, parse_integer(asked, "plan")
    found = (
        list_revisions(project, name).filter(number=wanted).first()
        if wanted is not None
        else find_current_revision(project, name)
    )
    if found is None and (wanted or name != DEFAULT_PLAN_NAME):
        said = _("Replay plan {name} not found in {project}.")
        raise NotFoundError(said.format(name=repr(ref[:80]), project=project.slug), "plan")
    return found


def parse_plan_name(told: Any) -> str:
    """Raises BadInput."""
    name = parse_text(told, "plan", most=80) or DEFAULT_PLAN_NAME
    if not PLAN_NAME_PATTERN.match(name):
        raise InvalidInputError(
            _("`plan` must have 1 to 80 characters (A-Z a-z 0-9 . _ -) and start with a letter or digit."), "plan"
        )
    return name


@transaction.atomic
def save_plan(
    project: Project,
    name: str,
    by: User,
    *,
    if_match: int,
    action: str,
    on_mismatch: str = "generate",
    exclude_flagged: bool = False,
    entries: Sequence[tuple[Pin, int]] = (),
) -> Revision:
    """A new revision after number `if_match` (0: there is none yet). `entries` are (pin, target step).

    The same save again, after an answer that was lost, is the revision it made. Raises Outdated when somebody else has
    saved meanwhile, BadInput for entries that no plan can have.
    """
    told = {
        "action": parse_choice(action, "action", PLAN_ACTIONS, default="cache"),
        "on_mismatch": parse_choice(on_mismatch, "on_mismatch", MISMATCH_ACTIONS, default="generate"),
        "exclude_flagged": exclude_flagged,
    }
    plan = locked(project, parse_plan_name(name))
    targets = checked(project, entries)
    last = find_current_revision(project, plan.name)
    newest = last.number if last else 0
    if newest != if_match:
        if (
            last
            and newest == if_match + 1
            and last.user_id == by.pk
            and serialize_revision(last) == {**told, "targets": targets}
        ):
            return last
        raise OutdatedError(outdated(plan, last, if_match))
    return written(plan, newest + 1, by, told, targets)


def locked(project: Project, name: str) -> ReplayPlan:
    """The plan, made on first sight; nobody else changes plans or removes pins of the project meanwhile."""
    Project.objects.lock(project)
    return ReplayPlan.objects.select_related("project").get_or_create(project=project, name=name)[0]


def outdated(plan: ReplayPlan, last: Revision | None, if_match: int) -> str:
    if last is None:
        return _("Plan {plan} has no revision {base}. Reload the plan.").format(plan=plan.name, base=if_match)
    said = _("Not saved: {user} saved revision {number} of {plan} after you started from {base}. Reload the plan.")
    return said.format(user=last.user.get_username(), number=last.number, plan=plan.name, base=if_match)


def checked(project: Project, entries: Sequence[tuple[Pin, int]]) -> dict[int, int]:
    """{target step: pin id}. Raises BadInput."""
    if len(entries) > MOST_ENTRIES:
        raise InvalidInputError(
            _("A plan can have at most {most} entries.").format(most=f"{MOST_ENTRIES:,}"), "entries"
        )
    found: dict[int, int] = {}
    ids = [pin.pk for pin, _ in entries]
    known = {pin.pk: pin for pin in Pin.objects.filter(pk__in=ids, project=project)}
    firsts = find_first_steps(ids)
    for told, target in entries:
        step = parse_integer(target, "target_step", least=firsts.get(told.pk, 1))
        if step is None:
            raise InvalidInputError(_("Every entry needs a target step."), "target_step")
        pin = known.get(told.pk)
        if pin is None:
            said = _("Pin {pin} not found in {project}.")
            raise NotFoundError(said.format(pin=told.pk, project=project.slug), "entries")
        if pin.removed_at is not None:
            said = _("Pin {pin} was removed. To replay it, pin {step} again.")
            raise InvalidInputError(said.format(pin=pin.pk, step=pin), "entries")
        if step in found:
            said = _("Two entries have the target step {step}. Use each target step only once.")
            raise InvalidInputError(said.format(step=step), "target_step")
        found[step] = pin.pk
    return found


def find_first_steps(ids: Collection[int]) -> dict[int, int]:
    """By pin: the first step of the trainer that would load it, 0 or 1; those that nothing is known of are left out."""
    formats = Artifact.objects.filter(pins__in=ids).values_list("pins", "facts__format").distinct()
    return {pin: first_step(form) for pin, form in formats if isinstance(form, str)}


def can_mask_rows(ids: Collection[int]) -> bool:
    """Whether the trainers that would load these pins take flagged rows along, without weight."""
    known = formats(ids)
    return bool(known) and all(map(masks_flagged, known))


def find_plan_trainer(revision: Revision | None) -> str:
    """The trainer that would load the plan's pins; "" where nothing tells."""
    return find_loading_trainer(list(revision.entries.values_list("pin", flat=True))) if revision else ""


def find_loading_trainer(ids: Collection[int]) -> str:
    """The trainer that would load these pins; "" where nothing tells."""
    return next((found.name for form in formats(ids) if (found := find_loader(form))), "")


def has_unknown_trainer(revision: Revision) -> bool:
    """Whether its pins say how they are written, and no trainer that we know loads that."""
    ids = list(revision.entries.values_list("pin", flat=True))
    return bool(formats(ids)) and not find_loading_trainer(ids)


def formats(ids: Collection[int]) -> list[str]:
    """How the files of these pins are written, as far as that was told."""
    told = Artifact.objects.filter(pins__in=ids).values_list("facts__format", flat=True).distinct()
    return [form for form in told if isinstance(form, str) and form]


def serialize_revision(revision: Revision) -> dict[str, Any]:
    """What a save with the same content would be told."""
    names = ("action", "on_mismatch", "exclude_flagged")
    targets = dict(revision.entries.values_list("target_step", "pin"))
    return {**{name: getattr(revision, name) for name in names}, "targets": targets}


def written(plan: ReplayPlan, number: int, by: User, told: dict[str, Any], targets: Mapping[int, int]) -> Revision:
    revision = Revision.objects.create(plan=plan, number=number, user=by, **told)
    Entry.objects.bulk_create(
        Entry(revision=revision, pin_id=pin, target_step=target) for target, pin in sorted(targets.items())
    )
    shown = {str(target): pin for target, pin in sorted(targets.items())}
    record_audit_entry(by, "plan.save", str(revision), project=plan.project, **told, entries=shown)
    notify_topics("pins")
    return revision


@transaction.atomic
def add_plan_entry(project: Project, name: str, by: User, pin: Pin, target: int) -> Revision:
    """Adds one entry to the newest revision, whoever saved it. Raises BadInput where the step replays another pin."""
    plan = locked(project, parse_plan_name(name))
    last = find_current_revision(project, plan.name)
    told: dict[str, Any] = serialize_revision(last) if last else {"action": "cache"}
    targets: dict[int, int] = told.pop("targets", {})
    step = next(iter(checked(project, [(pin, target)])))
    if targets.get(step, pin.pk) != pin.pk:
        said = _("Step {step} of plan {plan} already replays another pin. Move that pin first.")
        raise InvalidInputError(said.format(step=step, plan=plan.name), "target_step")
    if last and step in targets:
        return last
    return written(plan, (last.number if last else 0) + 1, by, told, {**targets, step: pin.pk})


@transaction.atomic
def pin_into_plan(
    run: Run,
    step: int,
    by: User,
    *,
    target_step: int | None = None,
    plan: str = DEFAULT_PLAN_NAME,
    split: str = "train",
    attempt: str = "",
    step_kind: str = "global_step",
    note: str | None = None,
) -> tuple[Pin, bool]:
    """Pins a step as `pins.pin` does; with `target_step`, the pin enters the plan too, or neither happens."""
    row, new = pin_step(run, step, by, split=split, attempt=attempt, step_kind=step_kind, note=note)
    if target_step is not None:
        add_plan_entry(run.project, plan, by, row, target_step)
    return row, new


def load_plan_entries(revision: Revision | None) -> list[Entry]:
    """In the order of their targets, with pins, runs and artifacts."""
    if revision is None:
        return []
    rows = revision.entries.select_related("pin__run__project", "pin__attempt", "pin__user")
    return list(rows.prefetch_related("pin__artifacts__run").order_by("target_step"))
