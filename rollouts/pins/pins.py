"""Pins: a pin stores the artifacts that can replay a step, and requests their upload if they are missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

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
from rollouts.models import (
    STEP_POSITION,
    Artifact,
    ArtifactQuerySet,
    Attempt,
    Pin,
    Project,
    Run,
    Sample,
    Step,
    get_step_position,
)
from rollouts.pins import artifacts
from rollouts.pins.artifacts import FEED_INDEX_PATTERN, PER_PROMPT_ROLE
from rollouts.pins.manifests import ArtifactManifest
from rollouts.projects import record_audit_entry

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_NOTE_CHARS = 10_000
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
    """Pins a step with all its artifacts. Returns the pin and whether the step was not pinned before.

    Without `attempt`, pins the step of the newest attempt that is shown. A repeated call changes the note if one is
    given, and replaces artifacts that are gone by newer ones of the step.
    Raises InvalidInputError, and NotFoundError if the step has nothing to replay.
    """
    Project.objects.lock(run.project)
    parse_choice(split, "split", SPLITS, default="train")
    parse_choice(step_kind, "step_kind", STEP_KINDS, default="global_step")
    pinned_attempt = find_attempt(run, split, step_kind, step, attempt)
    replayable, prompts = find_replayable_artifacts(run, pinned_attempt, split, step_kind, step)
    if not replayable:
        raise NotFoundError(explain_nothing_to_pin(run, step, prompts), "step")
    position = {"run": run, "attempt": pinned_attempt, "split": split, "step_kind": step_kind, "step": step}
    defaults = {"project": run.project, "user": by, "note": parse_note(note)}
    row = find_reusable_pin(position, replayable) or Pin(**position, **defaults)
    is_new = row.pk is None or row.removed_at is not None
    if row.removed_at is not None:
        row.removed_at, row.user, row.note = None, by, parse_note(note)
    elif note is not None:
        row.note = parse_note(note)
    row.prompts = prompts
    row.save()
    set_artifacts(row, replayable, is_new=is_new)
    if is_new:
        record_audit_entry(by, "pin.create", name_pin(row), project=run.project, run=run.uid, step=step, split=split)
    notify_run_changed(run, split=split, step=step, topics=("pins",))
    return row, is_new


def find_reusable_pin(position: dict[str, Any], replayable: Sequence[Artifact]) -> Pin | None:
    """Returns the pin of the step, else its last removed one, unless that has other artifacts and an unfinished run is
    bound to it: the run keeps replaying the same bytes."""
    rows = Pin.objects.filter(**position)
    current = rows.filter(removed_at=None).first()
    removed = None if current else rows.order_by("-pk").first()
    has_other_files = removed is not None and set(removed.artifacts.all()) != set(replayable)
    if removed and has_other_files and find_bound_pins().filter(pk=removed.pk).exists():
        return None
    return current or removed


def parse_note(note: str | None) -> str:
    """Returns the note, empty for None. Raises InvalidInputError."""
    lines = note.replace("\r\n", "\n") if isinstance(note, str) else note  # of a form
    return "" if lines is None else parse_multiline_text(lines, "note", max_chars=MAX_NOTE_CHARS)


def find_attempt(run: Run, split: str, step_kind: str, step: int, key: str) -> Attempt:
    """Returns the attempt with this key. Without a key: the newest one with this step. Raises NotFoundError."""
    if key:
        attempt = run.attempts.filter(key=parse_text(key, "attempt", max_chars=120)).first()
        if attempt is None:
            raise NotFoundError(_("This run has no attempt {name}.").format(name=repr(key[:60])), "attempt")
        return attempt
    position = {"split": split, "step_kind": step_kind, "step": step}
    steps = Step.objects.current().filter(run=run, **position).select_related("attempt").order_by("-attempt__number")
    step_artifacts = run.artifacts.filter(**position).select_related("attempt").order_by("-attempt__number", "-pk")
    row = steps.first() or step_artifacts.first()
    if row is None:
        message = _("This run has no {kind} {step} ({split}).")
        others = ", ".join(sorted(find_step_kinds(run, split) - {step_kind}))
        if others:
            message = _("This run has no {kind} {step} ({split}). Its step kinds are {others}; set `step_kind`.")
        elif step_kind == "global_step":
            message = _("This run has no step {step} ({split}).")
        raise NotFoundError(message.format(kind=step_kind, step=step, split=split, others=others), "step")
    return row.attempt


def find_step_kinds(run: Run, split: str) -> set[str]:
    """Returns the step kinds of the run's steps and artifacts in a split."""
    queries = (rows.filter(split=split).order_by().values_list("step_kind") for rows in (run.steps, run.artifacts))
    return {kind for rows in queries for (kind,) in rows.distinct()}


def find_replayable_artifacts(
    run: Run, attempt: Attempt, split: str, step_kind: str, step: int
) -> tuple[list[Artifact], int | None]:
    """Returns the artifacts that can replay a step. If each prompt has its own, also returns the number of prompts."""
    step_artifacts = artifacts.find_step_artifacts(run, split=split, step_kind=step_kind, step=step)
    if replayable := select_newest(select_attempt_artifacts(attempt, step_artifacts)):
        return replayable, None
    indices = find_feed_indices(run=run, attempt=attempt, split=split, step_kind=step_kind, step=step)
    if not indices:
        return [], None
    return select_newest(find_prompt_artifacts(run, attempt, indices)), len(indices)


def find_prompt_artifacts(run: Run, attempt: Attempt, indices: Sequence[int]) -> list[Artifact]:
    """Returns the artifacts of the prompts with these feed indices that a step of the attempt was trained on."""
    rows = run.artifacts.filter(role=PER_PROMPT_ROLE, step_kind="feed_index", step__in=indices)
    return select_attempt_artifacts(attempt, rows.order_by("pk"))


def select_attempt_artifacts(attempt: Attempt, rows: ArtifactQuerySet) -> list[Artifact]:
    """Returns the artifacts of this attempt. If it has none: those of watched or imported files, else all."""
    every_artifact = list(rows.select_related("attempt"))
    own = [artifact for artifact in every_artifact if artifact.attempt_id == attempt.pk]
    from_files = [artifact for artifact in every_artifact if FILES_ATTEMPT_PATTERN.match(artifact.attempt.key)]
    return own or from_files or every_artifact


def select_newest(rows: Iterable[Artifact]) -> list[Artifact]:
    """Returns the last artifact of each role and step. One whose bytes are gone is used only if there is no other."""
    selected: dict[tuple[str, int], Artifact] = {}
    for artifact in rows:
        previous = selected.get((artifact.role, artifact.step))
        if previous is None or artifact.state != State.GONE or previous.state == State.GONE:
            selected[artifact.role, artifact.step] = artifact
    return list(selected.values())


def find_feed_indices(**position: Any) -> list[int]:
    """Returns the feed indices of the prompts that a step was trained on, from the group ids of its samples."""
    samples = Sample.objects.visible().filter(step__in=Step.objects.filter(**position))
    groups = samples.values_list("group", flat=True).distinct()
    return sorted({int(match[1]) for group in groups if (match := FEED_INDEX_PATTERN.search(group))})


def explain_nothing_to_pin(run: Run, step: int, prompts: int | None) -> str:
    """Returns the message for a step without artifacts. `prompts` is the number of prompts with own files."""
    if prompts:
        message = _("None of the {prompts} prompts of step {step} has files that a trainer can load.")
        return message.format(prompts=prompts, step=step)
    if not run.artifacts.exclude(role="tokenizer").exists():
        if run.framework in TRAINERS:
            message = _("This run has no files that a trainer can load. To see how to save them, run: {command}")
            return message.format(command=f"rolloutdeck check --trainer {run.framework}")
        return _(
            "This run has no files that a trainer can load. Turn on the trainer's rollout dump and watch its folder."
        )
    return _("Step {step} has no files that a trainer can load.").format(step=step)


def set_artifacts(row: Pin, replayable: Sequence[Artifact], *, is_new: bool) -> None:
    """Sets the artifacts of a pin. An existing pin does not change its artifacts, except those that are gone."""
    unchanged = [] if is_new else [artifact for artifact in row.artifacts.all() if artifact.state != State.GONE]
    keys = {(artifact.role, artifact.step) for artifact in unchanged}
    added = [artifact for artifact in replayable if (artifact.role, artifact.step) not in keys]
    row.artifacts.set([*unchanged, *added])
    for artifact in row.artifacts.filter(state__in=Artifact.PENDING_STATES):
        artifacts.refresh_artifact(artifact)


@transaction.atomic
def register_artifact(run: Run, attempt: str, manifest: ArtifactManifest) -> tuple[Artifact, bool]:
    """Stores the manifest, and adds the late files of a prompt to the pins of the steps that were trained on it.
    A repeated report adds them too, if they came before the samples of a step."""
    is_of_prompt = manifest.role == PER_PROMPT_ROLE
    if is_of_prompt:
        Project.objects.lock(run.project)
    artifact, created = artifacts.store_manifest(run, attempt, manifest)
    if is_of_prompt and add_artifact_to_pins(artifact):
        notify_run_changed(run, split=artifact.split, step=artifact.step, topics=("pins",))
    return artifact, created


def add_artifact_to_pins(artifact: Artifact) -> list[Pin]:
    """Returns the pins that got the files of a prompt: those of its attempt that lack them. The files replace others
    that are gone. The caller has locked the project."""
    if artifact.role != PER_PROMPT_ROLE or artifact.state == State.GONE:
        return []
    open_pins = Pin.objects.filter(run=artifact.run, removed_at=None, prompts__isnull=False)
    same_prompt = artifact.run.artifacts.filter(step=artifact.step, role=PER_PROMPT_ROLE)
    others = list(open_pins.exclude(artifacts__in=same_prompt.exclude(state=State.GONE)).select_related("attempt"))
    positions = find_trained_positions(artifact, {pin.step for pin in others})
    at_these = [pin for pin in others if tuple(get_step_position(pin).values()) in positions]
    pins = [pin for pin in at_these if is_trained_on(pin, artifact)]
    for pin in pins:
        pin.artifacts.remove(*pin.artifacts.filter(pk__in=same_prompt))
        pin.artifacts.add(artifact)
    return pins


def find_trained_positions(artifact: Artifact, steps: Collection[int]) -> set[tuple[Any, ...]]:
    """Returns the positions of the steps with these numbers that have samples of the artifact's prompt."""
    samples = Sample.objects.visible().filter(step__run=artifact.run, step__step__in=steps)
    own = samples.filter(group__endswith=f"_{artifact.step}").order_by()
    return set(own.values_list(*(f"step__{name}" for name in STEP_POSITION)).distinct())


def is_trained_on(pin: Pin, artifact: Artifact) -> bool:
    """Whether the pinned step was trained on the prompt of these files, as `pin_step` would find them."""
    indices = find_feed_indices(**get_step_position(pin))
    return artifact.step in indices and artifact in find_prompt_artifacts(artifact.run, pin.attempt, indices)


def name_pin(row: Pin) -> str:
    """The name of a pin in the audit log; it stays readable after the run is deleted."""
    return f"step {row.step} of {row.run.name}"


@transaction.atomic
def update_pin_note(row: Pin, by: User, note: str) -> Pin:
    """Changes the note. Raises InvalidInputError."""
    row.note = parse_note(note)
    row.save(update_fields=["note"])
    record_audit_entry(by, "pin.note", name_pin(row), project=row.project, note=row.note)
    notify_run_changed(row.run, split=row.split, step=row.step, topics=("pins",))
    return row


@transaction.atomic
def remove_pin(row: Pin, by: User) -> Pin:
    """Removes a pin. A second call changes nothing. Raises ConflictError if the newest revision of a plan uses it."""
    Project.objects.lock(row.project)
    row = Pin.objects.select_related("run", "project").get(pk=row.pk)
    if row.removed_at is not None:
        return row
    if plans := row.current_plans():
        message = _("This pin is used by the replay plan {plans}. Remove it from the plan first.")
        raise ConflictError(message.format(plans=", ".join(plans)))
    row.removed_at = timezone.now()
    row.save(update_fields=["removed_at"])
    name = name_pin(row)
    record_audit_entry(by, "pin.remove", name, project=row.project, run=row.run.uid, step=row.step, split=row.split)
    notify_run_changed(row.run, split=row.split, step=row.step, topics=("pins",))
    return row


def find_pin(step: Step) -> Pin | None:
    """Returns the pin of this step, or None."""
    return Pin.objects.filter(**get_step_position(step), removed_at=None).first()


def find_bound_pins() -> QuerySet[Pin]:
    """Returns the pins of the plan revisions that unfinished runs are bound to."""
    return Pin.objects.filter(entries__revision__bindings__run__in=Run.objects.unfinished())
