"""Artifacts: told by the node that has the files, fetched when a pin wants them, checked before a trainer gets them."""

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

from rolloutdeck.protocol import (
    ARTIFACT_ROLES,
    SPLITS,
    STEP_KINDS,
    check_manifest,
    compute_artifact_key,
    count_manifest_bytes,
)
from rollouts.errors import InvalidInputError
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text, redact_secrets
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, ArtifactQuerySet, Blob, Run
from rollouts.storage import count_part_bytes, store_blob

MOST_FACTS = 32 << 10  # bytes of JSON
MAX_POLLING_HOSTS = 50
MOST_WANTED = 10_000  # files
POLL_WRITTEN = timedelta(seconds=10)  # a poll sooner than this after the last is not written down
MAX_ORIGIN_CHARS = {"host": 120, "path": 1000, "command": 4000}  # longest, in characters
# Where prompts are fed one by one, their ids end in the feed index that their files are dumped under.
FEED_INDEX_PATTERN = re.compile(r"_([0-9]{1,18})\Z")
PER_PROMPT_ROLE = "async_rollout"  # the role whose artifacts are one prompt each
State = Artifact.State


@dataclass(frozen=True, slots=True)
class ArtifactManifest:
    """What a node tells of files of one step. `origin` is {host, path, command}; `gone` says why they cannot come."""

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
    def read(cls, data: Mapping[str, Any]) -> ArtifactManifest:
        """From the body of a request. Raises BadInput naming the field."""
        role = parse_choice(data.get("role"), "role", ARTIFACT_ROLES, default="rollout")
        step = parse_integer(data.get("step"), "step")
        if step is None:
            raise InvalidInputError("`step` says which step the files are of; it is missing.", "step")
        return cls(
            role,
            step,
            files_of(data.get("files")),
            split=parse_choice(data.get("split"), "split", SPLITS, default="train"),
            step_kind=parse_choice(data.get("step_kind"), "step_kind", STEP_KINDS, default="global_step"),
            facts=facts_of(data.get("facts")),
            origin=origin_of(data.get("origin")),
            send_now=parse_boolean(data.get("send_now", False), "send_now"),
            gone=parse_text(data.get("gone"), "gone", most=500),
        )


def files_of(files: Any) -> dict[str, dict[str, Any]]:
    """Raises BadInput."""
    try:
        check_manifest(files)
    except ValueError as error:
        raise InvalidInputError(str(error), "files") from error
    return {str(path): {"sha256": file["sha256"], "bytes": file["bytes"]} for path, file in files.items()}


def facts_of(facts: Any) -> dict[str, Any]:
    """As they may be stored; names that this server does not compare are kept. Raises BadInput."""
    if facts is None:
        return {}
    if not isinstance(facts, Mapping) or len(json.dumps(facts)) > MOST_FACTS:
        raise InvalidInputError(f"`facts` must be an object of at most {MOST_FACTS} bytes.", "facts")
    return dict(redact_secrets(dict(facts)))


def merge_facts(known: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What was known with what is told now. Raises BadInput where it has become too much."""
    return facts_of({**known, **told})


def origin_of(origin: Any) -> dict[str, str]:
    """Raises BadInput."""
    if origin is None:
        return {}
    if not isinstance(origin, Mapping):
        raise InvalidInputError("`origin` must be an object {host, path, command}.", "origin")
    found = {name: parse_text(origin.get(name), "origin", most=most) for name, most in MAX_ORIGIN_CHARS.items()}
    return dict(redact_secrets(found))


@transaction.atomic
def register_artifact(run: Run, attempt: str, told: ArtifactManifest) -> tuple[Artifact, bool]:
    """The artifact with these files, made on first sight; the bool says whether it was made now.

    Told again: where the bytes lie is brought up to date, `send_now` stays once it was said, and what was gone may come
    again. Its step and role stay those it was first told with. Raises BadInput.
    """
    key = compute_artifact_key(told.files)
    launched = get_or_create_attempt(run, attempt)
    fresh = {
        "attempt": launched,
        "role": told.role,
        "split": told.split,
        "step_kind": told.step_kind,
        "step": told.step,
        "files": told.files,
        "bytes": count_manifest_bytes(told.files),
        "facts": {**(told.facts or {}), "role": told.role},
        "missing": len(told.files),
    }
    artifact, created = Artifact.objects.get_or_create(run=run, key=key, defaults=fresh)
    artifact = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    artifact.origin = told.origin or artifact.origin
    artifact.facts = merge_facts(artifact.facts, {**(told.facts or {}), "role": artifact.role})
    artifact.send_now = artifact.send_now or told.send_now
    lose(artifact, told.gone)
    artifact.save(update_fields=["origin", "facts", "send_now", "state", "message"])
    refresh_artifact(artifact)
    record_activity(run, launched)
    if created or told.gone:
        notify_run_changed(run, split=artifact.split, step=artifact.step, topics=("pins",))
    return artifact, created


def lose(artifact: Artifact, reason: str) -> None:
    """Bytes that are here stay whatever became of their origin; what has not come is gone, or may come again."""
    if reason and artifact.pending:
        artifact.state, artifact.message = State.GONE, reason
    elif not reason and artifact.state == State.GONE:
        artifact.state, artifact.message = State.WAITING, ""


@transaction.atomic
def refresh_artifact(artifact: Artifact) -> Artifact:
    """Finds which of its files are here, whoever sent them. `artifact.due` says afterwards whether to check it."""
    row = Artifact.objects.select_for_update(of=("self",), no_key=True).select_related("run").get(pk=artifact.pk)
    if row.pending:
        sizes = {file["sha256"]: file["bytes"] for file in row.files.values()}
        known = Blob.objects.filter(project=row.run.project_id, sha256__in=list(sizes))
        here = [blob for blob in known if blob.bytes == sizes[blob.sha256]]  # a manifest may lie about a size
        row.blobs.set(here)
        there = {blob.sha256 for blob in here}
        row.missing = sum(file["sha256"] not in there for file in row.files.values())
        row.save(update_fields=["missing"])
    artifact.state, artifact.missing = row.state, row.missing
    return artifact


def list_missing_hashes(artifact: Artifact) -> list[str]:
    """Hashes of its files that are not here, each once, in the manifest's order."""
    here = set(artifact.blobs.values_list("sha256", flat=True))
    return [sha for sha in dict.fromkeys(file["sha256"] for file in artifact.files.values()) if sha not in here]


def find_file_size(artifact: Artifact, sha256: str) -> int | None:
    """Bytes of the file with this hash; None when it is not one of the artifact's."""
    return next((file["bytes"] for file in artifact.files.values() if file["sha256"] == sha256), None)


def prefetch_blobs(rows: QuerySet[Artifact]) -> ArtifactQuerySet:
    """With what is here of each, for `received`."""
    found = rows.select_related("run", "attempt").prefetch_related(Prefetch("blobs", Blob.objects.only("sha256")))
    assert isinstance(found, ArtifactQuerySet)
    return found


def count_received_bytes(artifact: Artifact) -> int:
    """Bytes of it that are here, those of files half sent included."""
    if artifact.state == State.READY:
        return artifact.bytes
    here = {blob.sha256 for blob in artifact.blobs.all()}
    return sum(received_of(artifact, file, here) for file in artifact.files.values())


def received_of(artifact: Artifact, file: Mapping[str, Any], here: set[str]) -> int:
    whole = file["sha256"] in here
    return int(file["bytes"] if whole else count_part_bytes(artifact.run.project_id, file["sha256"], file["bytes"]))


def mark_upload_started(artifact: Artifact) -> None:
    """The first part of a file has arrived."""
    Artifact.objects.filter(pk=artifact.pk, state=State.WAITING).update(state=State.UPLOADING)
    notify_run_changed(artifact.run, topics=("pins",))


@transaction.atomic
def store_artifact_file(artifact: Artifact, sha256: str, plain: Any, size: int) -> Artifact:
    """Keeps the bytes of one of its files; `plain`, a path, is gone afterwards and its hash has been checked.

    Raises StorageUnavailable. `artifact.due` says afterwards whether to check it.
    """
    blob = store_blob(artifact.run.project_id, sha256, plain, size)
    row = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    if row.state in (State.WAITING, State.GONE):
        Artifact.objects.filter(pk=row.pk).update(state=State.UPLOADING, message="")
    row.blobs.add(blob)
    refresh_artifact(artifact)
    notify_run_changed(artifact.run, split=artifact.split, step=artifact.step, topics=("pins",))
    return artifact


@dataclass(frozen=True, slots=True)
class RequestedFile:
    """A file that a host should send: `received` bytes of it are here."""

    artifact: str
    path: str
    sha256: str
    bytes: int
    received: int


def list_requested_files(run: Run, host: str = "") -> list[RequestedFile]:
    """Files that a pin or `send_now` asks for and that are not here, of this host where one is named; in step order,
    and of so many artifacts only as have about `MOST_WANTED`: the others are asked for when these have come.

    Remembers that the host has asked, so that pages can say when nobody does.
    """
    rows = Artifact.objects.pending().filter(run=run, missing__gt=0)
    asked = rows.filter(send_now=True) | rows.filter(pk__in=Artifact.objects.held().values("pk"))
    if host:
        polled(run, parse_text(host, "host", most=120))
        asked = asked.filter(origin__host__in=[host, ""]) | asked.filter(origin__host__isnull=True)
    waiting, files = [], 0
    for row in prefetch_blobs(asked.order_by("step", "pk")).iterator(chunk_size=100):
        waiting.append(row)
        files += row.missing
        if files >= MOST_WANTED:
            break
    found = {row.pk: list(files_wanted(row)) for row in waiting}
    lacking = {file.sha256: file for files in reversed(found.values()) for file in reversed(files)}
    here = Blob.objects.filter(project=run.project_id, sha256__in=list(lacking)).values_list("sha256", "bytes")
    brought = {sha256 for sha256, size in here if lacking[sha256].bytes == size and lacking.pop(sha256)}
    for row in waiting:
        if any(file.sha256 in brought for file in found[row.pk]):
            refresh_artifact(row)
    return list(lacking.values())[::-1]


def files_wanted(artifact: Artifact) -> Iterable[RequestedFile]:
    here = {blob.sha256 for blob in artifact.blobs.all()}
    for path, file in sorted(artifact.files.items()):
        if file["sha256"] not in here:
            so_far = received_of(artifact, file, here)
            yield RequestedFile(artifact.key, path, file["sha256"], file["bytes"], so_far)


def polled(run: Run, host: str) -> None:
    now = timezone.now()
    with transaction.atomic():
        row = Run.objects.select_for_update(no_key=True).only("pollers").get(pk=run.pk)
        before = find_last_poll(row, host)
        if before and now - before < POLL_WRITTEN:
            return
        newest = sorted({**row.pollers, host: now.isoformat()}.items(), key=lambda item: item[1])
        Run.objects.filter(pk=run.pk).update(pollers=dict(newest[-MAX_POLLING_HOSTS:]))


def find_last_poll(run: Run, host: str) -> datetime | None:
    """When this host last asked which bytes are wanted."""
    told = run.pollers.get(host)
    return datetime.fromisoformat(told) if told else None


def explain_unavailability(artifact: Artifact) -> str:
    """An empty string when a trainer may have its files, else the sentence that says why not."""
    match artifact.state:
        case State.READY:
            return ""
        case State.UNSAFE:
            return f"This artifact is not safe to load and is served to nobody: {artifact.message}"
        case State.GONE:
            return f"The bytes of this artifact are gone: {artifact.message}"
    return "The bytes of this artifact are not all here, or not checked yet; pin its step and try again."


def find_step_artifacts(run: Run, *, split: str, step_kind: str, step: int) -> ArtifactQuerySet:
    """What a trainer could load again of this step, oldest first."""
    rows: ArtifactQuerySet = run.artifacts.filter(split=split, step_kind=step_kind, step=step)
    return rows.exclude(role="tokenizer").order_by("pk")
