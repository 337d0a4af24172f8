"""Artifacts: registered by the host that has the files, uploaded when a pin needs them, checked before use."""

from __future__ import annotations

import re
from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from rolloutdeck import protocol
from rollouts.errors import ConflictError
from rollouts.indexing import FORGOTTEN_MESSAGE
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, ArtifactQuerySet, Blob, Run
from rollouts.pins.manifests import ArtifactManifest, merge_facts
from rollouts.storage import count_part_bytes, store_blob

# If prompts are fed one by one, their ids end in the feed index, which also names their dump files.
FEED_INDEX_PATTERN = re.compile(r"_([0-9]{1,18})\Z")
UNFINISHED_CHECK = "Checking it "  # begins the message of a check that did not end
PER_PROMPT_ROLE = "async_rollout"  # the role whose artifacts are one prompt each
State = Artifact.State


@transaction.atomic
def store_manifest(run: Run, attempt: str, manifest: ArtifactManifest) -> tuple[Artifact, bool]:
    """Returns the artifact with these files, created if it is new, and whether it was created.

    An artifact whose files had a prompt that was forgotten stays gone, and so does a new one of the same step.

    A repeated report updates the origin and the facts. `send_now` remains true once it was true. A gone artifact waits
    for its bytes again, and one whose check did not end is checked again. The step and the role remain those of the
    first report. Raises InvalidInputError.
    """
    key = protocol.compute_artifact_key(manifest.files)
    reporting_attempt = get_or_create_attempt(run, attempt)
    defaults = {
        **{name: getattr(manifest, name) for name in ("role", "split", "step_kind", "step", "files")},
        "attempt": reporting_attempt,
        "bytes": protocol.count_manifest_bytes(manifest.files),
        "facts": {**(manifest.facts or {}), "role": manifest.role},
        "missing": len(manifest.files),
    }
    artifact, created = Artifact.objects.get_or_create(run=run, key=key, defaults=defaults)
    artifact = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    artifact.origin = manifest.origin or artifact.origin
    artifact.facts = merge_facts(artifact.facts, {**(manifest.facts or {}), "role": artifact.role})
    artifact.send_now = artifact.send_now or manifest.send_now
    if has_forgotten_prompt(artifact):
        artifact.state, artifact.message = State.GONE, FORGOTTEN_MESSAGE
        artifact.forgotten_at = artifact.forgotten_at or timezone.now()
    else:
        update_gone_state(artifact, manifest.gone)
        if artifact.state == State.UNSAFE and artifact.message.startswith(UNFINISHED_CHECK):
            artifact.state, artifact.message, artifact.tries = State.UPLOADING, "", 0
            artifact.due_at = timezone.now()
    artifact.save(update_fields=["origin", "facts", "send_now", "state", "message", "forgotten_at", "tries", "due_at"])
    refresh_artifact(artifact)
    record_activity(run, reporting_attempt)
    if created or manifest.gone:
        notify_run_changed(run, split=artifact.split, step=artifact.step, topics=("pins",))
    return artifact, created


def has_forgotten_prompt(artifact: Artifact) -> bool:
    """Whether it must not come back. If each prompt has an artifact, the others of its step may."""
    if artifact.forgotten_at or artifact.role in (PER_PROMPT_ROLE, "tokenizer"):
        return artifact.forgotten_at is not None
    same_step = Artifact.objects.filter(run=artifact.run_id, split=artifact.split, step_kind=artifact.step_kind)
    same_step = same_step.filter(attempt=artifact.attempt_id, step=artifact.step, role=artifact.role)
    return bool(same_step.filter(forgotten_at__isnull=False).exists())


def update_gone_state(artifact: Artifact, reason: str) -> None:
    """Marks an incomplete artifact as gone if there is a `reason`, else as waiting again.

    A complete artifact does not change: its bytes are stored, whatever happened to their origin.
    """
    if reason and artifact.pending:
        artifact.state, artifact.message = State.GONE, reason
    elif not reason and artifact.state == State.GONE:
        artifact.state, artifact.message = State.WAITING, ""


@transaction.atomic
def refresh_artifact(artifact: Artifact) -> Artifact:
    """Finds which files are stored, from any upload. Afterwards `artifact.due` says whether to check the artifact."""
    row = Artifact.objects.select_for_update(of=("self",), no_key=True).select_related("run").get(pk=artifact.pk)
    if row.pending:
        sizes = {file["sha256"]: file["bytes"] for file in row.files.values()}
        same_hash = Blob.objects.filter(project=row.run.project_id, sha256__in=list(sizes))
        blobs = [blob for blob in same_hash if blob.bytes == sizes[blob.sha256]]  # a manifest may name a wrong size
        row.blobs.set(blobs)
        stored_hashes = {blob.sha256 for blob in blobs}
        row.missing = sum(file["sha256"] not in stored_hashes for file in row.files.values())
        row.save(update_fields=["missing"])
    artifact.state, artifact.missing = row.state, row.missing
    return artifact


def list_missing_hashes(artifact: Artifact) -> list[str]:
    """Returns the hashes of the files that are not stored, each once, in the order of the manifest."""
    stored_hashes = set(artifact.blobs.values_list("sha256", flat=True))
    hashes = dict.fromkeys(file["sha256"] for file in artifact.files.values())
    return [sha256 for sha256 in hashes if sha256 not in stored_hashes]


def find_file_size(artifact: Artifact, sha256: str) -> int | None:
    """Returns the size in bytes of the file with this hash, None if the artifact has no such file."""
    return next((file["bytes"] for file in artifact.files.values() if file["sha256"] == sha256), None)


def prefetch_blobs(rows: QuerySet[Artifact]) -> ArtifactQuerySet:
    """Returns the query with the blobs of each artifact, for `count_received_bytes`."""
    with_blobs = rows.select_related("run", "attempt").prefetch_related(Prefetch("blobs", Blob.objects.only("sha256")))
    assert isinstance(with_blobs, ArtifactQuerySet)
    return with_blobs


def count_received_bytes(artifact: Artifact) -> int:
    """Returns the number of stored bytes, partial uploads included."""
    if artifact.state == State.READY:
        return artifact.bytes
    project, stored_hashes = artifact.run.project_id, {blob.sha256 for blob in artifact.blobs.all()}
    files = [(file["sha256"], file["bytes"]) for file in artifact.files.values()]
    return sum(size if sha in stored_hashes else count_part_bytes(project, sha, size) for sha, size in files)


def mark_upload_started(artifact: Artifact) -> None:
    """Sets the state `uploading` after the first part of a file has arrived."""
    Artifact.objects.filter(pk=artifact.pk, state=State.WAITING).update(state=State.UPLOADING)
    notify_run_changed(artifact.run, topics=("pins",))


@transaction.atomic
def store_artifact_file(artifact: Artifact, sha256: str, plain: Any, size: int) -> Artifact:
    """Stores one file of the artifact. `plain` is a path; the caller has checked its hash. The file is moved.

    Afterwards `artifact.due` says whether to check the artifact. Raises StorageUnavailableError, and ConflictError if
    its files had a prompt that was forgotten; the file is removed then.
    """
    if Artifact.objects.filter(pk=artifact.pk, forgotten_at__isnull=False).exists():
        plain.unlink(missing_ok=True)
        raise ConflictError(FORGOTTEN_MESSAGE)
    blob = store_blob(artifact.run.project_id, sha256, plain, size)
    row = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    if row.forgotten_at:  # meanwhile; the hourly cleanup removes the file
        raise ConflictError(FORGOTTEN_MESSAGE)
    if row.state in (State.WAITING, State.GONE):
        Artifact.objects.filter(pk=row.pk).update(state=State.UPLOADING, message="")
    row.blobs.add(blob)
    refresh_artifact(artifact)
    notify_run_changed(artifact.run, split=artifact.split, step=artifact.step, topics=("pins",))
    return artifact


def explain_unavailability(artifact: Artifact) -> str:
    """Returns why a trainer cannot download the artifact, an empty string if it can."""
    match artifact.state:
        case State.READY:
            return ""
        case State.UNSAFE:
            return f"This artifact is not safe to load and is served to nobody: {artifact.message}"
        case State.GONE:
            return f"The bytes of this artifact are gone: {artifact.message}"
    return "This artifact is not fully uploaded or not checked yet. Pin its step and try again."


def find_step_artifacts(run: Run, *, split: str, step_kind: str, step: int) -> ArtifactQuerySet:
    """Returns the artifacts of this step that a trainer can load, oldest first. Tokenizers are not among them."""
    rows: ArtifactQuerySet = run.artifacts.filter(split=split, step_kind=step_kind, step=step)
    return rows.exclude(role="tokenizer").order_by("pk")
