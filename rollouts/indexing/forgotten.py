"""Drops the bytes of a dump from which a forgotten prompt was left out: they still have its text."""

from functools import partial

from django.db import transaction
from django.utils import timezone

from rollouts.indexing.reading import FORGOTTEN
from rollouts.models import Artifact, Dump
from rollouts.storage import delete_unused_blobs, delete_unused_raw_files

FORGOTTEN_MESSAGE = "Its files had a prompt that was forgotten. The server removed them and does not take them again."


def drop_forgotten_bytes(dump: Dump) -> None:
    """Marks the dump as final, in the caller's transaction. The file is removed after the commit, or, if an upload may
    still use it, by the hourly cleanup."""
    now, row = timezone.now(), Dump.objects.filter(pk=dump.pk)
    row.update(samples_dropped_at=now, raw_dropped_at=now)
    transaction.on_commit(partial(delete_unused_raw_files, dump.run.project_id, [dump.sha256]))


def drop_forgotten_artifact(dump: Dump) -> None:
    """Drops the files of the dump's artifact once all its dumps are indexed, if any of them had a forgotten prompt."""
    key = dump.source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")[0]
    family = Dump.objects.filter(run=dump.run_id, source__startswith=f"{Dump.ARTIFACT_PREFIX}{key}/")
    unfinished = family.filter(state__in=(Dump.State.RECEIVED, Dump.State.INDEXING)).exclude(pk=dump.pk)
    if unfinished.exists() or not family.filter(left_out__has_key=FORGOTTEN).exists():
        return
    family.update(samples_dropped_at=timezone.now())
    for artifact in Artifact.objects.filter(run=dump.run_id, key=key, forgotten_at=None):
        drop_artifact_files(artifact)


def drop_artifact_files(artifact: Artifact) -> None:
    """Marks an artifact as gone for ever, in the caller's transaction. Its files are removed after the commit.
    Waits for an upload that adds one, so that none is left over."""
    Artifact.objects.select_for_update(no_key=True).filter(pk=artifact.pk).first()
    blobs = list(artifact.blobs.all())
    artifact.blobs.clear()
    state, now = Artifact.State.GONE, timezone.now()
    changed = Artifact.objects.filter(pk=artifact.pk)
    changed.update(state=state, message=FORGOTTEN_MESSAGE, missing=len(artifact.files), ready_at=None, forgotten_at=now)
    transaction.on_commit(partial(delete_unused_blobs, blobs))
