"""Pins: what a step's generation can be replayed from is kept, and fetched if it is elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rolloutdeck.trainer_api import TRAINERS
from rollouts.errors import ConflictError, NotFoundError
from rollouts.ingest import FILES_ATTEMPT_PATTERN
from rollouts.lib import parse_choice, parse_multiline_text, parse_text
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, ArtifactQuerySet, Attempt, Pin, Project, Run, Sample, Step
from rollouts.pins import artifacts
from rollouts.pins.artifacts import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_NOTE = 10_000
State = Artifact.State


@transaction.atomic
def pin_step(
    run: Run,
    step: int,
    by: User,
    *,
    split: str = "train",
    attempt: str = "",
    step_kind: str = "global_step",
    note: str | None = None,
) -> tuple[Pin, bool]:
    """Pins a step with all its artifacts. The bool: it was not pinned.

    Without `attempt`, of the launch whose step is shown. Pinning again changes the note if one is given, and takes what
    has come for the step where its artifacts are gone. Raises BadInput, and NotThere where nothing could be replayed.
    """
    Project.objects.lock(run.project)
    parse_choice(split, "split", SPLITS, default="train")
    parse_choice(step_kind, "step_kind", STEP_KINDS, default="global_step")
    launched = attempt_for(run, split, step_kind, step, attempt)
    found, prompts = find_replayable_artifacts(run, launched, split, step_kind, step)
    if not found:
        raise NotFoundError(explain_nothing_to_pin(run, step, prompts), "step")
    place = {"run": run, "attempt": launched, "split": split, "step_kind": step_kind, "step": step}
    fresh = {"project": run.project, "user": by, "note": note_of(note), "prompts": prompts}
    row, created = Pin.objects.get_or_create(**place, defaults=fresh)
    new = created or row.removed_at is not None
    if row.removed_at is not None:
        row.removed_at, row.user, row.note = None, by, note_of(note)
    elif note is not None:
        row.note = note_of(note)
    row.prompts = prompts
    row.save()
    hold(row, found, anew=new)
    if new:
        record_audit_entry(by, "pin.create", str(row), project=run.project, run=run.uid, step=step, split=split)
    notify_run_changed(run, split=split, step=step, topics=("pins",))
    return row, new


def note_of(note: str | None) -> str:
    """Raises BadInput."""
    return "" if note is None else parse_multiline_text(note, "note", most=MOST_NOTE)


def attempt_for(run: Run, split: str, step_kind: str, step: int, key: str) -> Attempt:
    """The launch whose step is meant. Raises NotThere."""
    if key:
        found = run.attempts.filter(key=parse_text(key, "attempt", most=120)).first()
        if found is None:
            raise NotFoundError(_("This run has no attempt {name}.").format(name=repr(key[:60])), "attempt")
        return found
    here = {"split": split, "step_kind": step_kind, "step": step}
    shown = Step.objects.current().filter(run=run, **here).select_related("attempt").order_by("-attempt__number")
    told = run.artifacts.filter(**here).select_related("attempt").order_by("-attempt__number", "-pk")
    row = shown.first() or told.first()
    if row is None:
        said = _("This run has no {kind} {step} ({split}).")
        others = ", ".join(sorted(counted(run, split) - {step_kind}))
        if others:
            said = _("This run has no {kind} {step} ({split}). Its step kinds are {others}; set `step_kind`.")
        raise NotFoundError(said.format(kind=step_kind, step=step, split=split, others=others), "step")
    return row.attempt


def counted(run: Run, split: str) -> set[str]:
    """What the run's steps of a split count, of those that are shown and those that can be replayed."""
    there = [
        rows.filter(split=split).order_by().values_list("step_kind", flat=True) for rows in (run.steps, run.artifacts)
    ]
    return {kind for kinds in there for kind in kinds.distinct()}


def find_replayable_artifacts(
    run: Run, attempt: Attempt, split: str, step_kind: str, step: int
) -> tuple[list[Artifact], int | None]:
    """The artifacts that a step can be replayed from, and how many prompts it was trained on where each has its own."""
    whole = artifacts.find_step_artifacts(run, split=split, step_kind=step_kind, step=step)
    if found := newest(told_by(attempt, whole)):
        return found, None
    fed = feed_indices(run, attempt, split, step_kind, step)
    if not fed:
        return [], None
    each = run.artifacts.filter(role=PER_PROMPT_ROLE, step_kind="feed_index", step__in=fed).order_by("pk")
    return newest(told_by(attempt, each)), len(fed)


def told_by(attempt: Attempt, rows: ArtifactQuerySet) -> list[Artifact]:
    """Those of this launch; else those that were watched or imported beside it; else those of any."""
    every = list(rows.select_related("attempt"))
    mine = [row for row in every if row.attempt_id == attempt.pk]
    return mine or [row for row in every if FILES_ATTEMPT_PATTERN.match(row.attempt.key)] or every


def newest(rows: Iterable[Artifact]) -> list[Artifact]:
    """The last told of each role and step; one whose bytes are gone only where there is no other."""
    found: dict[tuple[str, int], Artifact] = {}
    for row in rows:
        known = found.get((row.role, row.step))
        if known is None or row.state != State.GONE or known.state == State.GONE:
            found[row.role, row.step] = row
    return list(found.values())


def feed_indices(run: Run, attempt: Attempt, split: str, step_kind: str, step: int) -> list[int]:
    """The feed indices of the prompts that a step was trained on, read from the ids its samples carry."""
    of = {"run": run, "attempt": attempt, "split": split, "step_kind": step_kind, "step": step}
    groups = Sample.objects.filter(step__in=Step.objects.filter(**of), visible=True).values_list("group", flat=True)
    return sorted({int(found[1]) for group in groups.distinct() if (found := FEED_INDEX_PATTERN.search(group))})


def explain_nothing_to_pin(run: Run, step: int, prompts: int | None) -> str:
    if prompts:
        said = _("None of the {prompts} prompts of step {step} has files that a trainer can load.")
        return said.format(prompts=prompts, step=step)
    if not run.artifacts.exclude(role="tokenizer").exists():
        if run.framework in TRAINERS:
            said = _("This run has no files that a trainer can load. To see how to save them, run: {command}")
            return said.format(command=f"rolloutdeck check --trainer {run.framework}")
        return _(
            "This run has no files that a trainer can load. Turn on the trainer's rollout dump and watch its folder."
        )
    return _("Step {step} has no files that a trainer can load.").format(step=step)


def hold(row: Pin, found: Sequence[Artifact], *, anew: bool) -> None:
    """A pin keeps the very artifacts it was made with; a later one of a step takes the place of one that is gone."""
    kept = [] if anew else [one for one in row.artifacts.all() if one.state != State.GONE]
    places = {(one.role, one.step) for one in kept}
    row.artifacts.set([*kept, *(one for one in found if (one.role, one.step) not in places)])
    for artifact in row.artifacts.filter(state__in=(State.WAITING, State.UPLOADING)):
        artifacts.refresh_artifact(artifact)


@transaction.atomic
def add_artifact_to_pins(artifact: Artifact) -> list[Pin]:
    """A pinned step takes the files of a prompt that it was trained on when they are told of later; which pins did."""
    if artifact.role != PER_PROMPT_ROLE:
        return []
    open_pins = Pin.objects.filter(run=artifact.run, removed_at=None, prompts__isnull=False)
    without = open_pins.exclude(artifacts__in=artifact.run.artifacts.filter(step=artifact.step, role=PER_PROMPT_ROLE))
    taken = [row for row in without if artifact.step in feed_indices(row.run, row.attempt, *place_of(row))]
    for row in taken:
        row.artifacts.add(artifact)
    return taken


def place_of(row: Pin) -> tuple[str, str, int]:
    return row.split, row.step_kind, row.step


@transaction.atomic
def update_pin_note(row: Pin, by: User, note: str) -> Pin:
    """Changes the note. Raises BadInput."""
    row.note = note_of(note)
    row.save(update_fields=["note"])
    record_audit_entry(by, "pin.note", str(row), project=row.project, note=row.note)
    notify_run_changed(row.run, split=row.split, step=row.step, topics=("pins",))
    return row


@transaction.atomic
def remove_pin(row: Pin, by: User) -> Pin:
    """Removes a pin; again changes nothing. Raises Conflict while the newest revision of a plan replays it."""
    Project.objects.lock(row.project)
    row = Pin.objects.select_related("run", "project").get(pk=row.pk)
    if row.removed_at is not None:
        return row
    if plans := row.current_plans():
        said = _("This pin is used by the replay plan {plans}. Remove it from the plan first.")
        raise ConflictError(said.format(plans=", ".join(plans)))
    row.removed_at = timezone.now()
    row.save(update_fields=["removed_at"])
    record_audit_entry(by, "pin.remove", str(row), project=row.project, run=row.run.uid, step=row.step, split=row.split)
    notify_run_changed(row.run, split=row.split, step=row.step, topics=("pins",))
    return row


def find_pin(step: Step) -> Pin | None:
    """The pin that stands on this step."""
    place = {name: getattr(step, name) for name in ("run", "attempt", "split", "step_kind", "step")}
    found: Pin | None = Pin.objects.filter(**place, removed_at=None).first()
    return found


def find_bound_pins() -> QuerySet[Pin]:
    """Those of a revision to which a run is bound that has not ended."""
    return Pin.objects.filter(entries__revision__bindings__run__in=Run.objects.going_on())
