"""Drops raw bytes once the body is verified to have every row of them.

First the row says that the bytes are dropped, then the file is removed. If the worker is killed in between, the hourly
cleanup removes the file.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from rollouts.formats import METRIC_FORMATS, TOKEN_ONLY_FORMATS
from rollouts.indexing import find_body_difference
from rollouts.live import notify_run_changed
from rollouts.models import Dump, RetentionPolicy, Run
from rollouts.retention.protection import KEEP_TAG
from rollouts.retention.sizes import find_raw_dumps, measure_raw_dump
from rollouts.storage import delete_raw_file, delete_unused_raw_files, list_files, skip_during_backup

log = logging.getLogger(__name__)

RAW_KEY = re.compile(r"raw/([0-9]+)/([^/.]+)/([^/.]+)\.zst")  # not the temporary name of a file that is written
ORPHAN_LIFETIME_SECONDS = 3600
DROPPED_LIFETIME_SECONDS = 60  # its row says that the file goes; an upload of the same bytes may use it just now
DONE_STATES = (Dump.State.INDEXED, Dump.State.SUPERSEDED)


def find_due_raw_dumps(policy: RetentionPolicy) -> QuerySet[Dump]:
    """Returns dumps with raw bytes and a body that are old enough. Evaluation keeps its raw bytes."""
    if policy.raw_after_days is None:
        return Dump.objects.none()
    oldest = timezone.now() - timedelta(days=policy.raw_after_days)
    dumps = Dump.objects.filter(
        run__project=policy.project, run__deleted_at=None, split="train", state__in=DONE_STATES,
        received_at__lte=oldest, segment__isnull=False,
    )  # fmt: skip
    unverified = Q(raw_kept_at=None) | Q(raw_kept_at__lt=F("indexed_at"))
    due: QuerySet[Dump] = find_raw_dumps(dumps).filter(unverified).exclude(format__in=TOKEN_ONLY_FORMATS)
    return due.select_related("run", "segment")


def has_keep_tag(run: Run) -> bool:
    return KEEP_TAG in run.tags


def find_raw_reason(dump: Dump, policy: RetentionPolicy) -> str:
    """Returns why the raw bytes of a dump are kept, "" if they are due."""
    if dump.split != "train":
        return "evaluation"
    if has_keep_tag(dump.run):
        return "run-tag"
    if dump.state not in DONE_STATES:
        return "not-indexed"
    if dump.format in METRIC_FORMATS:
        return "no-samples"
    if dump.format in TOKEN_ONLY_FORMATS:
        return "tokens-only"
    if dump.segment_id is None:
        return "several-steps" if dump.step is None else "no-samples"
    if dump.raw_kept_at and dump.indexed_at and dump.raw_kept_at >= dump.indexed_at:
        return "not-verified"
    if dump.received_at > timezone.now() - timedelta(days=policy.raw_after_days or 0):
        return "young"
    return ""


def drop_raw_dump(dump: Dump) -> int:
    """Drops the raw bytes of a dump if its body has all rows. Returns the freed bytes, 0 if they are kept. Raises
    StorageUnavailableError."""
    if difference := find_body_difference(dump):
        log.warning("The raw bytes of dump %s are kept: %s.", dump.pk, difference)
        Dump.objects.filter(pk=dump.pk).update(raw_kept_at=timezone.now())
        return 0
    size = measure_raw_dump(dump.run.project_id, dump.sha256)
    with transaction.atomic():
        unchanged = Dump.objects.filter(
            pk=dump.pk, state=dump.state, rows=dump.rows, segment=dump.segment_id, segment_offset=dump.segment_offset
        )
        if not unchanged.update(raw_dropped_at=timezone.now(), raw_dropped_bytes=size):
            return 0
        notify_run_changed(dump.run)
    delete_unused_raw_files(dump.run.project_id, [dump.sha256, *drop_split_sources(dump)])
    return size


def drop_split_sources(dump: Dump) -> list[str]:
    """Marks the files that were split into steps and of which every part has lost its raw bytes. Returns their hashes.

    A part has the source of its file, and its bytes were copied from it.
    """
    fields = ("run_id", "attempt_id", "split", "source", "producer", "offset", "generation")
    family = Dump.objects.filter(**{name: getattr(dump, name) for name in fields})
    files = family.filter(step=None, raw_dropped_at=None, state__in=DONE_STATES).exclude(pk=dump.pk)
    if not files or family.exclude(step=None).filter(raw_dropped_at=None).exists():
        return []
    for file in files:
        size = measure_raw_dump(dump.run.project_id, file.sha256)
        Dump.objects.filter(pk=file.pk).update(raw_dropped_at=timezone.now(), raw_dropped_bytes=size)
    return [file.sha256 for file in files]


@skip_during_backup
def delete_orphan_raw_files() -> int:
    """Removes raw files that no row needs: a worker died before it removed them, or before it wrote the row.

    Returns their number.
    """
    deleted, now = 0, time.time()
    names: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)  # by project and folder
    for file in list_files("raw/"):
        if match := RAW_KEY.fullmatch(file.key):
            names[int(match[1]), match[2]][match[3]] = file.modified_at
    for (project, _folder), found in names.items():
        known = Dump.objects.filter(run__project=project, sha256__in=list(found))
        dropped = set(known.exclude(raw_dropped_at=None).values_list("sha256", flat=True))
        for sha256 in found.keys() - set(find_raw_dumps(known).values_list("sha256", flat=True)):
            lifetime = DROPPED_LIFETIME_SECONDS if sha256 in dropped else ORPHAN_LIFETIME_SECONDS
            if found[sha256] < now - lifetime and delete_raw_file(project, sha256, lifetime):
                deleted += 1
    return deleted
