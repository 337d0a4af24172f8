"""The files that the server requests from the hosts that have them. A host polls for its list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from rollouts.lib import parse_text
from rollouts.models import Artifact, Blob, Run
from rollouts.pins.artifacts import prefetch_blobs, refresh_artifact
from rollouts.storage import count_part_bytes

MAX_POLLING_HOSTS = 50
MAX_REQUESTED_FILES = 10_000
MIN_POLL_INTERVAL = timedelta(seconds=10)  # a poll sooner than this after the last is not stored


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
