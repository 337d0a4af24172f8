"""Replay plans: which pin is replayed at which step. Each save is a new revision."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from rolloutdeck.protocol import MISMATCH_ACTIONS, PLAN_ACTIONS, SELECTED_ACTIONS, SELECTION_SOURCES
from rollouts.errors import InvalidInputError, NotFoundError, OutdatedError
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.live import notify_topics
from rollouts.models import Entry, Pin, Project, ReplayPlan, Revision, Run
from rollouts.pins import pin_step
from rollouts.projects import record_audit_entry
from rollouts.replay.loading_trainers import check_selected_action, find_first_steps

if TYPE_CHECKING:
    from django.contrib.auth.models import User

DEFAULT_PLAN_NAME = "default"
PLAN_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")
MAX_ENTRIES = 10_000
SETTINGS = ("action", "on_mismatch", "on_selected", "selected_by")  # of a revision, next to its entries


def find_current_revision(project: Project, name: str = DEFAULT_PLAN_NAME) -> Revision | None:
    """Returns the newest revision, None if the plan was never saved."""
    return list_revisions(project, name).last()


def list_revisions(project: Project, name: str = DEFAULT_PLAN_NAME) -> QuerySet[Revision]:
    """Returns all revisions, oldest first."""
    rows = Revision.objects.filter(plan__project=project, plan__name=name)
    return rows.select_related("plan__project", "user").order_by("number")


def list_plan_names(project: Project) -> list[str]:
    """Returns the names of the saved plans, in alphabetical order."""
    return list(ReplayPlan.objects.filter(project=project).order_by("name").values_list("name", flat=True))


def find_revision(project: Project, ref: str) -> Revision | None:
    """Returns the revision of `name@number`, or the newest of `name`. An empty `ref` means the plan `default`.

    Returns None if `default` was never saved. Raises InvalidInputError, and NotFoundError if there is no such revision.
    """
    name, _at, number_text = parse_text(ref, "plan", max_chars=120).partition("@")
    name, number = name or DEFAULT_PLAN_NAME, parse_integer(number_text, "plan")
    revisions = list_revisions(project, name)
    revision = revisions.last() if number is None else revisions.filter(number=number).first()
    if revision is None and (number or name != DEFAULT_PLAN_NAME):
        message = _("Replay plan {name} not found in {project}.")
        raise NotFoundError(message.format(name=repr(ref[:80]), project=project.slug), "plan")
    return revision


def find_plan_entry(project: Project, target: int, name: str = DEFAULT_PLAN_NAME) -> Entry | None:
    """Returns the entry with which the newest revision replays a pin at this step."""
    revision = find_current_revision(project, name)
    if revision is None:
        return None
    return revision.entries.select_related("pin__run", "pin__attempt").filter(target_step=target).first()


def parse_plan_name(value: Any) -> str:
    """Raises InvalidInputError."""
    name = parse_text(value, "plan", max_chars=80) or DEFAULT_PLAN_NAME
    if not PLAN_NAME_PATTERN.match(name):
        message = _("`plan` must have 1 to 80 characters (A-Z a-z 0-9 . _ -) and start with a letter or digit.")
        raise InvalidInputError(message, "plan")
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
    on_selected: str = "keep",
    selected_by: str = "flags",
    entries: Sequence[tuple[Pin, int]] = (),
) -> Revision:
    """Saves a new revision after number `if_match` (0 if the plan has none). `entries` are (pin, target step).

    A repeated save, after a lost response, returns the revision of the first one. Raises OutdatedError if another
    revision was saved meanwhile, InvalidInputError and NotFoundError for invalid entries, and InvalidInputError if the
    trainer of a pin does not support `on_selected`.
    """
    settings = {
        "action": parse_choice(action, "action", PLAN_ACTIONS, default="cache"),
        "on_mismatch": parse_choice(on_mismatch, "on_mismatch", MISMATCH_ACTIONS, default="generate"),
        "on_selected": parse_choice(on_selected, "on_selected", SELECTED_ACTIONS, default="keep"),
        "selected_by": parse_choice(selected_by, "selected_by", SELECTION_SOURCES, default="flags"),
    }
    plan = lock_plan(project, parse_plan_name(name))
    targets = check_entries(project, entries)
    last = find_current_revision(project, plan.name)
    newest = last.number if last else 0
    if newest == if_match:
        return create_revision(plan, newest + 1, by, settings, targets)
    is_same = last and last.user_id == by.pk and serialize_revision(last) == {**settings, "targets": targets}
    if last and newest == if_match + 1 and is_same:
        return last
    raise build_outdated_error(plan.name, last, if_match)


@transaction.atomic
def move_entries(
    project: Project,
    name: str,
    by: User,
    *,
    if_match: int,
    remaining: Sequence[tuple[Pin, int]],
    moved: Sequence[tuple[Pin, int]],
    **settings: Any,
) -> tuple[Revision, Revision]:
    """Saves the plan with the `remaining` entries, and a new plan with those that were `moved`. Returns both revisions.

    `settings` are those of `save_plan`, for both plans. Raises OutdatedError if `if_match` is not the newest revision.
    """
    if not moved:
        raise InvalidInputError(_("Select the lines to move."), "entries")
    Project.objects.lock(project)
    last = find_current_revision(project, name)
    if (last.number if last else 0) != if_match:
        raise build_outdated_error(name, last, if_match)
    new_name = choose_free_name(project, name)
    rest = save_plan(project, name, by, if_match=if_match, entries=remaining, **settings)
    return rest, save_plan(project, new_name, by, if_match=0, entries=moved, **settings)


def choose_free_name(project: Project, name: str) -> str:
    """Returns `name-2`, or with the next number that no plan of the project has."""
    taken = set(list_plan_names(project))
    return next(free for number in count(2) if (free := f"{name[:70]}-{number}") not in taken)


def build_outdated_error(plan: str, last: Revision | None, base: int) -> OutdatedError:
    if last is None:
        message = _("Plan {plan} has no revision {base}. Reload the plan.")
        return OutdatedError(message.format(plan=plan, base=base))
    message = _("Not saved: {user} saved revision {number} of {plan} after you started from {base}. Reload the plan.")
    user = last.user.get_username()
    return OutdatedError(message.format(user=user, number=last.number, plan=plan, base=base))


def lock_plan(project: Project, name: str) -> ReplayPlan:
    """Returns the plan, created if needed. Locks all plans and pins of the project."""
    Project.objects.lock(project)
    return ReplayPlan.objects.select_related("project").get_or_create(project=project, name=name)[0]


def check_entries(project: Project, entries: Sequence[tuple[Pin, int]]) -> dict[int, int]:
    """Returns {target step: pin id}. Raises InvalidInputError and NotFoundError."""
    check_entry_count(len(entries))
    targets: dict[int, int] = {}
    ids = [pin.pk for pin, _ in entries]
    known = {pin.pk: pin for pin in Pin.objects.filter(pk__in=ids, project=project)}
    first_steps = find_first_steps(ids)
    for entry_pin, target in entries:
        step = parse_integer(target, "target_step", minimum=first_steps.get(entry_pin.pk, 1))
        if step is None:
            raise InvalidInputError(_("Every entry needs a target step."), "target_step")
        pin = known.get(entry_pin.pk)
        if pin is None:
            message = _("Pin {pin} not found in {project}.")
            raise NotFoundError(message.format(pin=entry_pin.pk, project=project.slug), "entries")
        if pin.removed_at is not None:
            message = _("Pin {pin} was removed. To replay it, pin {step} again.")
            raise InvalidInputError(message.format(pin=pin.pk, step=pin), "entries")
        if step in targets:
            message = _("Two entries have the target step {step}. Use each target step only once.")
            raise InvalidInputError(message.format(step=step), "target_step")
        targets[step] = pin.pk
    return targets


def check_entry_count(count: int) -> None:
    """Raises InvalidInputError."""
    if count > MAX_ENTRIES:
        message = _("A plan can have at most {limit} entries.")
        raise InvalidInputError(message.format(limit=f"{MAX_ENTRIES:,}"), "entries")


def serialize_revision(revision: Revision) -> dict[str, Any]:
    settings = {name: getattr(revision, name) for name in SETTINGS}
    return {**settings, "targets": dict(revision.entries.values_list("target_step", "pin"))}


def create_revision(
    plan: ReplayPlan, number: int, by: User, settings: dict[str, Any], targets: Mapping[int, int]
) -> Revision:
    check_entry_count(len(targets))
    check_selected_action(settings.get("on_selected", "keep"), list(targets.values()))
    revision = Revision.objects.create(plan=plan, number=number, user=by, **settings)
    ordered = sorted(targets.items())
    Entry.objects.bulk_create(Entry(revision=revision, pin_id=pin, target_step=target) for target, pin in ordered)
    entries = {str(target): pin for target, pin in ordered}
    record_audit_entry(by, "plan.save", str(revision), project=plan.project, **settings, entries=entries)
    notify_topics("pins")
    return revision


@transaction.atomic
def add_plan_entry(project: Project, name: str, by: User, pin: Pin, target: int) -> Revision:
    """Adds an entry to the newest revision. Raises InvalidInputError if the plan replays another pin at this step."""
    plan = lock_plan(project, parse_plan_name(name))
    last = find_current_revision(project, plan.name)
    settings: dict[str, Any] = serialize_revision(last) if last else {"action": "cache"}
    targets: dict[int, int] = settings.pop("targets", {})
    step = next(iter(check_entries(project, [(pin, target)])))
    if targets.get(step, pin.pk) != pin.pk:
        message = _("Step {step} of plan {plan} already replays another pin. Move that pin first.")
        raise InvalidInputError(message.format(step=step, plan=plan.name), "target_step")
    if last and step in targets:
        return last
    return create_revision(plan, (last.number if last else 0) + 1, by, settings, {**targets, step: pin.pk})


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
    """Calls `pin_step`. With `target_step`, also adds the pin to the plan, in the same transaction."""
    row, is_new = pin_step(run, step, by, split=split, attempt=attempt, step_kind=step_kind, note=note)
    if target_step is not None:
        add_plan_entry(run.project, plan, by, row, target_step)
    return row, is_new


def load_plan_entries(revision: Revision | None) -> list[Entry]:
    """Returns the entries ordered by target step, with pins, runs and artifacts."""
    if revision is None:
        return []
    rows = revision.entries.select_related("pin__run__project", "pin__attempt", "pin__user")
    return list(rows.prefetch_related("pin__artifacts__run").order_by("target_step"))
