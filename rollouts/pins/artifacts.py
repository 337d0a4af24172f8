"""Artifacts: registered by the host that has the files, uploaded when a pin needs them, checked before use."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from rolloutdeck import protocol
from rollouts.errors import ConflictError, InvalidInputError
from rollouts.indexing import FORGOTTEN_MESSAGE
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, ArtifactQuerySet, Blob, Run
from rollouts.storage import count_part_bytes, store_blob

MAX_FACTS_BYTES = 32 << 10  # of JSON
MAX_POLLING_HOSTS = 50
MAX_REQUESTED_FILES = 10_000
MIN_POLL_INTERVAL = timedelta(seconds=10)  # a poll sooner than this after the last is not stored
MAX_ORIGIN_CHARS = {"host": 120, "path": 1000, "command": 4000}
# If prompts are fed one by one, their ids end in the feed index, which also names their dump files.
FEED_INDEX_PATTERN = re.compile(r"_([0-9]{1,18})\Z")
UNFINISHED_CHECK = "Checking it "  # begins the message of a check that did not end
PER_PROMPT_ROLE = "async_rollout"  # the role whose artifacts are one prompt each
State = Artifact.State


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """A host's description of the files of one step.

    `origin` is {host, path, command}. `gone` says why the files cannot be uploaded any more.
    """

    role: str
    step: int
    files: dict[str, dict[str, Any]]
    split: str = "train"
    step_kind: str = "global_step"
    facts: dict[str, Any] | None = None
    origin: dict[str, str] | None = None
    send_now: bool = False
    gone: str = ""

    @classmethod
    def from_request(cls, data: Mapping[str, Any]) -> ArtifactManifest:
        """Returns the manifest in a request body. Raises InvalidInputError with the name of the field."""
        role = parse_choice(data.get("role"), "role", protocol.ARTIFACT_ROLES, default="rollout")
        step = parse_integer(data.get("step"), "step")
        if step is None:
            raise InvalidInputError("`step` is required: the step of the files.", "step")
        return cls(
            role,
            step,
            parse_files(data.get("files")),
            split=parse_choice(data.get("split"), "split", protocol.SPLITS, default="train"),
            step_kind=parse_choice(data.get("step_kind"), "step_kind", protocol.STEP_KINDS, default="global_step"),
            facts=parse_facts(data.get("facts")),
            origin=parse_origin(data.get("origin")),
            send_now=parse_boolean(data.get("send_now", False), "send_now"),
            gone=parse_text(data.get("gone"), "gone", max_chars=500),
        )


def parse_files(files: Any) -> dict[str, dict[str, Any]]:
    """Returns {path: {sha256, bytes}}. Raises InvalidInputError."""
    try:
        protocol.check_manifest(files)
    except ValueError as error:
        raise InvalidInputError(str(error), "files") from error
    return {str(path): {"sha256": file["sha256"], "bytes": file["bytes"]} for path, file in files.items()}


def parse_facts(facts: Any) -> dict[str, Any]:
    """Returns the facts without secrets. Names that this server does not compare are stored too.

    Raises InvalidInputError.
    """
    if facts is None:
        return {}
    if not isinstance(facts, Mapping) or len(json.dumps(facts)) > MAX_FACTS_BYTES:
        raise InvalidInputError(f"`facts` must be an object of at most {MAX_FACTS_BYTES} bytes.", "facts")
    return dict(redact_secrets(dict(facts)))


def merge_facts(stored: Mapping[str, Any], reported: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the stored facts updated with the reported ones. Raises InvalidInputError if they are too large."""
    return parse_facts({**stored, **reported})


def parse_origin(origin: Any) -> dict[str, str]:
    """Returns {host, path, command} without secrets. Raises InvalidInputError."""
    if origin is None:
        return {}
    if not isinstance(origin, Mapping):
        raise InvalidInputError("`origin` must be an object {host, path, command}.", "origin")
    fields = {name: parse_text(origin.get(name), "origin", max_chars=chars) for name, chars in MAX_ORIGIN_CHARS.items()}
    return dict(redact_secrets(fields))


@transaction.atomic
def register_artifact(run: Run, attempt: str, manifest: ArtifactManifest) -> tuple[Artifact, bool]:
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


@dataclass(frozen=True, slots=True)
class RequestedFile:
    """A file that a host should upload. `received` bytes are stored already."""

    artifact: str
    path: str
    sha256: str
    bytes: int
    received: int


def list_requested_files(run: Run, host: str = "") -> list[RequestedFile]:
    """Returns the missing files that a pin or `send_now` requests, in step order, only those of `host` if it is set.

    Returns at most about `MAX_REQUESTED_FILES` files. The others follow when these are uploaded.
    Stores the time of the host's poll, so that pages can show when no host polls.
    """
    rows = Artifact.objects.pending().filter(run=run, missing__gt=0)
    requested = rows.filter(send_now=True) | rows.filter(pk__in=Artifact.objects.in_use().values("pk"))
    if host:
        record_poll(run, parse_text(host, "host", max_chars=120))
        requested = requested.filter(origin__host__in=[host, ""]) | requested.filter(origin__host__isnull=True)
    waiting, file_count = [], 0
    for artifact in prefetch_blobs(requested.order_by("step", "pk")).iterator(chunk_size=100):
        waiting.append(artifact)
        file_count += artifact.missing
        if file_count >= MAX_REQUESTED_FILES:
            break
    files_by_artifact = {artifact.pk: list(iter_missing_files(artifact)) for artifact in waiting}
    missing = {file.sha256: file for files in reversed(files_by_artifact.values()) for file in reversed(files)}
    stored = Blob.objects.filter(project=run.project_id, sha256__in=list(missing)).values_list("sha256", "bytes")
    found_hashes = {sha256 for sha256, size in stored if missing[sha256].bytes == size and missing.pop(sha256)}
    for artifact in waiting:  # another upload of the project brought a file
        if any(file.sha256 in found_hashes for file in files_by_artifact[artifact.pk]):
            refresh_artifact(artifact)
    return list(missing.values())[::-1]


def iter_missing_files(artifact: Artifact) -> Iterable[RequestedFile]:
    stored_hashes = {blob.sha256 for blob in artifact.blobs.all()}
    for path, file in sorted(artifact.files.items()):
        sha256, size = file["sha256"], file["bytes"]
        if sha256 not in stored_hashes:
            received = count_part_bytes(artifact.run.project_id, sha256, size)
            yield RequestedFile(artifact.key, path, sha256, size, received)


def record_poll(run: Run, host: str) -> None:
    """Stores the time of a host's poll. Only the newest `MAX_POLLING_HOSTS` hosts of a run are stored."""
    now = timezone.now()
    with transaction.atomic():
        row = Run.objects.select_for_update(no_key=True).only("pollers").get(pk=run.pk)
        last_poll = find_last_poll(row, host)
        if last_poll and now - last_poll < MIN_POLL_INTERVAL:
            return
        newest = sorted({**row.pollers, host: now.isoformat()}.items(), key=lambda item: item[1])
        Run.objects.filter(pk=run.pk).update(pollers=dict(newest[-MAX_POLLING_HOSTS:]))


def find_last_poll(run: Run, host: str) -> datetime | None:
    """Returns when this host last polled for requested files, or None."""
    polled_at = run.pollers.get(host)
    return datetime.fromisoformat(polled_at) if polled_at else None


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
