"""Repairs what `check_integrity` found: rebuilds bodies from raw dumps, removes orphans, marks what is lost."""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from rollouts.indexing import index_dump
from rollouts.integrity.check import GRACE_SECONDS, Problem, get_segment_path, list_images, select_old_files
from rollouts.integrity.files import RateLimit, find_damage
from rollouts.integrity.references import FileReference, iterate_references
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, Blob, Dump, Segment
from rollouts.storage import (
    allow_deletion,
    delete_file,
    get_blob_key,
    get_body_key,
    get_raw_dump_key,
    has_file,
    list_files,
)

log = logging.getLogger(__name__)

LOST_TEXT = "The texts of its samples are lost: the body file and the raw bytes are missing or damaged."
LOST_FILE = "A stored file was missing or damaged. Upload it again."


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about a problem. `repaired` is False if data is lost, or nothing could be done now."""

    problem: Problem
    action: str
    repaired: bool


def repair_problems(problems: Iterable[Problem], grace: float = GRACE_SECONDS) -> list[Repair]:
    """Repairs the problems, raw dumps first: bodies are rebuilt from those that are whole."""
    by_kind: dict[str, list[Problem]] = {"raw": [], "blobs": [], "bodies": [], "images": []}
    orphans: list[Problem] = []
    for problem in problems:
        (orphans if problem.problem == "orphan" else by_kind[problem.kind]).append(problem)
    return [
        *map(delete_damaged_raw_file, by_kind["raw"]),
        *map(reset_damaged_blob, by_kind["blobs"]),
        *rebuild_bodies(by_kind["bodies"]),
        *map(delete_damaged_image, by_kind["images"]),
        *remove_orphans(orphans, grace),
    ]


def delete_damaged_image(problem: Problem) -> Repair:
    delete_file(problem.name)
    return Repair(problem, "removed; indexing the run again restores it", False)


def remove_orphans(orphans: list[Problem], grace: float) -> list[Repair]:
    """Removes the files that still have no row and are still old."""
    with allow_deletion() as allowed:
        if not allowed:
            return [Repair(problem, "kept, because a backup runs", False) for problem in orphans]
        listed = select_old_files(list_files(), grace)
        kept = {reference.name for reference in iterate_references()} | {image.name for image in list_images(listed)}
        removable = set(listed) - kept
        for problem in orphans:
            if problem.name in removable:
                delete_file(problem.name)
    kept_because = "kept: it was written a moment ago, or a row refers to it again"
    return [Repair(problem, "removed" if problem.name in removable else kept_because, True) for problem in orphans]


def delete_damaged_raw_file(problem: Problem) -> Repair:
    """Removes damaged raw bytes, so that the trainer's next upload of them is stored. The bodies remain.

    During a backup too: it is no file that a restore could use.
    """
    delete_file(problem.name)
    return Repair(problem, "cannot be repaired: send the dump again, or keep its samples as they are", False)


def reset_damaged_blob(problem: Problem) -> Repair:
    """Lets the artifacts of a file wait for it again."""
    project = int(problem.name.split("/")[1])
    with transaction.atomic():
        blob = Blob.objects.select_for_update().filter(project=project, sha256=problem.sha256).first()
        artifacts = list(Artifact.objects.filter(blobs=blob)) if blob else []
        if blob:
            blob.delete()
        for artifact in artifacts:
            state, now = Artifact.State.WAITING, timezone.now()
            changed = Artifact.objects.filter(pk=artifact.pk)
            missing = artifact.missing + sum(file["sha256"] == problem.sha256 for file in artifact.files.values())
            changed.update(state=state, missing=missing, message=LOST_FILE, ready_at=None, tries=0, due_at=now)
            notify_run_changed(artifact.run, split=artifact.split, step=artifact.step, topics=("pins",))
        transaction.on_commit(partial(delete_file, problem.name))
    return Repair(problem, "its artifact waits for the file again; run the upload command of its pin", False)


def rebuild_bodies(problems: Iterable[Problem]) -> list[Repair]:
    """Indexes the dumps of body files again, and marks those whose source is gone.

    First all of them are queued: while a dump is indexed, a lost body of another dump of its step matters only if that
    dump does not wait.
    """
    found = [(problem, list(find_dumps(problem))) for problem in problems]
    lost: set[int] = set()
    for problem, dumps in found:
        for dump in dumps:
            if dump.is_final or not is_source_whole(dump):
                lost.add(dump.pk)
                mark_lost(dump, is_file_missing=problem.problem != "damaged")
            else:  # workers leave it to this process
                Dump.objects.filter(pk=dump.pk).requeue(timezone.now() + Dump.MAX_DELAY / 2)
    return [rebuild_body_file(problem, dumps, lost) for problem, dumps in found]


def find_dumps(problem: Problem) -> QuerySet[Dump]:
    """Returns the dumps of a body file."""
    dumps: QuerySet[Dump] = Dump.objects.select_related("run")
    if problem.problem == "bodyless":
        return dumps.filter(pk=int(problem.name.split()[1]))
    return dumps.filter(segment__path=get_segment_path(problem.name))


def rebuild_body_file(problem: Problem, dumps: Collection[Dump], lost: Collection[int]) -> Repair:
    """Indexes the dumps of a body file that are not `lost`."""
    failed = [dump for dump in dumps if dump.pk not in lost and not rebuild_body(dump)]
    if problem.problem != "bodyless":
        rows = Segment.objects.filter(path=get_segment_path(problem.name))
        rows.filter(dumps=None).delete()
        if not rows.exists():
            delete_file(problem.name)
    if count := sum(dump.pk in lost for dump in dumps):
        return Repair(problem, f"the texts of {count} of {len(dumps)} dumps are lost and marked so", False)
    if failed:
        return Repair(problem, f"{len(failed)} of {len(dumps)} dumps could not be indexed; the log says why", False)
    return Repair(problem, f"rebuilt from {len(dumps)} raw dumps", True)


def rebuild_body(dump: Dump) -> bool:
    """Indexes a queued dump again from its source, and returns whether it has another body file then."""
    try:
        index_dump(dump.pk)
    except Exception:
        log.exception("Dump %s could not be indexed.", dump.pk)
        return False
    old, dump.segment_id = dump.segment_id, None
    dump.refresh_from_db()
    segment = dump.segment
    if segment is None and dump.state == Dump.State.INDEXED and dump.is_final:
        return True  # all its samples have a prompt that was forgotten meanwhile
    return segment is not None and segment.pk != old and has_file(get_body_key(segment.path))


def is_source_whole(dump: Dump) -> bool:
    """Whether the bytes of a dump are stored and have their hash."""
    project = dump.run.project_id
    if dump.is_from_artifact:
        reference = FileReference("blobs", get_blob_key(project, dump.sha256), dump.sha256)
    else:
        reference = FileReference("raw", get_raw_dump_key(project, dump.sha256), dump.sha256)
    try:
        return not find_damage(reference, None, RateLimit(None))
    except FileNotFoundError:
        return False


def mark_lost(dump: Dump, is_file_missing: bool) -> None:
    """Marks a dump as failed, so that pages say what is lost. What can still be read of a damaged file is kept."""
    changes = {"segment": None} if is_file_missing else {}
    with transaction.atomic():
        Dump.objects.filter(pk=dump.pk).update(state=Dump.State.FAILED, message=LOST_TEXT, **changes)
        notify_run_changed(dump.run, split=dump.split, step=dump.step)
