"""Artifacts are checked: a file is plain JSON, or one that runs no code where a trainer unpickles it."""

from __future__ import annotations

import json

from django.db import transaction
from django.utils import timezone

from rolloutdeck import safe_pickle as safe
from rollouts.errors import StorageUnavailableError
from rollouts.indexing import create_artifact_dumps
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, Blob
from rollouts.storage import get_blob_path, open_blob

MOST_JSON = 128 << 20  # bytes; a tokenizer has tens of millions
MAX_JSON_VALUES = 10_000_000  # in it, of which each takes a hundred bytes of memory; a tokenizer has one or two
MOST_MESSAGE = 2000


def check_artifact(artifact_id: int) -> list[int]:
    """Checks an artifact whose bytes are all here, if nobody else does: it is `ready` afterwards, or `unsafe` with the
    reasons. Calling it again, at any time and from anywhere, does no harm. Raises StorageUnavailable.

    Returns the ids of the dumps that wait to be indexed because of it, see `artifact_dumps.py`.
    """
    artifact = Artifact.objects.select_related("run").filter(pk=artifact_id).first()
    if artifact is None or not artifact.claim():
        return []
    tired = artifact.tries >= Artifact.MAX_TRIES
    return settle(artifact, tired_of(artifact) if tired else reasons(artifact))


def tired_of(artifact: Artifact) -> list[str]:
    return [f"Checking it ended without an answer {artifact.tries} times (a worker killed, or out of memory?)."]


def reasons(artifact: Artifact) -> list[str]:
    """Why a trainer must not have it, a sentence each; none when it may."""
    here = {blob.sha256: blob for blob in artifact.blobs.all()}
    found: list[str] = []
    for path, file in sorted(artifact.files.items()):
        found += [f"{path}: {reason}" for reason in reasons_of(path, here[file["sha256"]])]
    return found


def reasons_of(path: str, blob: Blob) -> list[str]:
    if path.lower().endswith(".json"):
        return json_reasons(blob)
    if blob.loadable is None:
        judge(blob)
    return [] if blob.loadable else list(blob.reasons)


def json_reasons(blob: Blob) -> list[str]:
    """JSON is data, whatever it says; only that it is JSON matters."""
    if blob.bytes > MOST_JSON:
        return [f"it is called JSON and has {blob.bytes} bytes; {MOST_JSON} are read."]
    try:
        with open_blob(blob.project_id, blob.sha256) as file:
            plain = file.read()
        if sum(map(plain.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
            return [f"it is called JSON and has more than {MAX_JSON_VALUES} values; so many are not read."]
        json.loads(plain.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return [f"it is called JSON and is none: {error}."]
    return []


def judge(blob: Blob) -> None:
    """Writes the verdict of `rolloutdeck.safe_pickle` on the blob."""
    path = get_blob_path(blob.project_id, blob.sha256)
    try:
        verdict = safe.check_file_safety(path)
    except OSError as error:
        raise StorageUnavailableError(
            f"The bytes of file {blob.sha256[:12]} cannot be read: {error.strerror}."
        ) from error
    blob.readable, blob.loadable = verdict.readable, verdict.loadable
    blob.reasons = list(verdict.reasons) or ([] if verdict.loadable else ["it is no file that we know to be safe."])
    blob.save(update_fields=["readable", "loadable", "reasons"])


@transaction.atomic
def settle(artifact: Artifact, found: list[str]) -> list[int]:
    row = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    if not row.due:
        return []
    row.state = Artifact.State.UNSAFE if found else Artifact.State.READY
    row.message = " ".join(found)[:MOST_MESSAGE]
    row.ready_at = None if found else timezone.now()
    row.save(update_fields=["state", "message", "ready_at"])
    notify_run_changed(artifact.run, split=row.split, step=row.step, topics=("pins",))
    return [] if found else [dump.pk for dump in create_artifact_dumps(row)]
