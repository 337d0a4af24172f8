"""The check of artifacts: a file must be plain JSON, or a pickle that runs no code when a trainer loads it."""

import json
import logging

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from rolloutdeck import safe_pickle as safe
from rollouts.errors import StorageUnavailableError
from rollouts.indexing import create_artifact_dumps
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, Blob
from rollouts.pins.artifacts import UNFINISHED_CHECK
from rollouts.storage import fetch_blob, open_blob

log = logging.getLogger(__name__)

OUT_OF_MEMORY = (
    UNFINISHED_CHECK + "was stopped because it needs more than {megabytes} MB of memory. Increase "
    "ROLLOUTDECK_MAX_WORKER_MEMORY_MB; it is checked again when its trainer or `rolloutdeck watch` reports it again."
)
MAX_JSON_BYTES = 128 << 20  # a tokenizer has tens of millions
MAX_JSON_VALUES = 10_000_000  # per file; each takes about 100 bytes of memory; a tokenizer has one or two million
MAX_MESSAGE_CHARS = 2000
SAMPLES_SHOWN_MESSAGE = "Its samples are shown."


def check_artifact(artifact_id: int) -> list[int]:
    """Checks a complete artifact, unless another worker does. Then it is `ready`, or `unsafe` with the reasons.

    Safe to call again at any time. Raises StorageUnavailableError if the bytes cannot be read.
    Returns the ids of the dumps that the artifact created and that must be indexed, see `indexing/artifact_dumps.py`.
    """
    artifact = Artifact.objects.select_related("run").filter(pk=artifact_id).first()
    if artifact is None or not artifact.claim():
        return []
    try:
        reasons = find_unsafe_reasons(artifact)
    except StorageUnavailableError:  # says nothing about the files, so the try does not count
        Artifact.objects.filter(pk=artifact.pk, tries__gt=0).update(tries=F("tries") - 1)
        raise
    except MemoryError:
        log.warning("Artifact %s needs more memory than a worker may use", artifact.pk)
        reasons = [OUT_OF_MEMORY.format(megabytes=settings.MAX_WORKER_MEMORY_MB)]
    return store_result(artifact, reasons)


def find_unsafe_reasons(artifact: Artifact) -> list[str]:
    """Returns why a trainer must not load the artifact, one sentence per reason. Empty if it may."""
    if artifact.tries >= Artifact.MAX_TRIES:
        return [
            f"{UNFINISHED_CHECK}ended without an answer {artifact.tries} times (a worker killed, or out of memory?)."
        ]
    blobs = {blob.sha256: blob for blob in artifact.blobs.all()}
    reasons: list[str] = []
    for path, file in sorted(artifact.files.items()):
        artifact.renew()  # many or large files take longer than one lease
        reasons += [f"{path}: {reason}" for reason in find_file_reasons(path, blobs[file["sha256"]])]
    return reasons


def find_file_reasons(path: str, blob: Blob) -> list[str]:
    if path.lower().endswith(".json"):
        return find_json_reasons(blob)
    if blob.loadable is None:
        store_safety_report(blob)
    return [] if blob.loadable else list(blob.reasons)


def find_json_reasons(blob: Blob) -> list[str]:
    """Checks only that the file is JSON: JSON runs no code, whatever its content is."""
    if blob.bytes > MAX_JSON_BYTES:
        return [f"it is called JSON and has {blob.bytes} bytes; {MAX_JSON_BYTES} are read."]
    try:
        with open_blob(blob.project_id, blob.sha256) as file:
            content = file.read()
        if sum(map(content.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
            return [f"it is called JSON and has more than {MAX_JSON_VALUES} values; so many are not read."]
        json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return [f"it is called JSON and is none: {error}."]
    return []


def store_safety_report(blob: Blob) -> None:
    """Stores the safety report of `rolloutdeck.safe_pickle` in the blob's row."""
    try:
        report = safe.check_file_safety(fetch_blob(blob.project_id, blob.sha256))
    except OSError as error:
        message = f"The bytes of file {blob.sha256[:12]} cannot be read: {error.strerror}."
        raise StorageUnavailableError(message) from error
    blob.readable, blob.loadable = report.readable, report.loadable
    blob.reasons = list(report.reasons) or ([] if report.loadable else ["it is no file that we know to be safe."])
    blob.save(update_fields=["readable", "loadable", "reasons"])


@transaction.atomic
def store_result(artifact: Artifact, reasons: list[str]) -> list[int]:
    """Sets the state of the artifact, unless another worker did. Returns the ids of the dumps to index.

    An unsafe file that our reader can read is indexed too: its samples are shown, and no trainer gets its bytes.
    """
    row = Artifact.objects.select_for_update(no_key=True).get(pk=artifact.pk)
    if not row.due:
        return []
    row.state = Artifact.State.UNSAFE if reasons else Artifact.State.READY
    unreadable = row.blobs.exclude(readable=True).values_list("sha256", flat=True) if reasons else ()
    indexes = not reasons or row.role != "tokenizer"
    dumps = create_artifact_dumps(row, skip_hashes=set(unreadable)) if indexes else []
    messages = [*reasons, *([SAMPLES_SHOWN_MESSAGE] if reasons and dumps else [])]
    row.message = " ".join(messages)[:MAX_MESSAGE_CHARS]
    row.ready_at = None if reasons else timezone.now()
    row.save(update_fields=["state", "message", "ready_at"])
    notify_run_changed(artifact.run, split=row.split, step=row.step, topics=("pins",))
    return [dump.pk for dump in dumps]
