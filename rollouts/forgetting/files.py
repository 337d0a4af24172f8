"""Removes stored files: raw dumps, files of artifacts, images, and body files that no row needs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
from django.db import transaction

from rollouts.forgetting.bodies import BodyMatches, read_tables
from rollouts.forgetting.pending import add_pending
from rollouts.indexing import drop_artifact_files
from rollouts.live import notify_run_changed
from rollouts.models import Artifact, Blob, Dump, EvidenceItem, ForgottenPrompt, Segment
from rollouts.storage import (
    allow_deletion,
    delete_file,
    delete_shared_parts,
    delete_unused_raw_files,
    fetch_body_file,
    get_blob_key,
    get_blob_upload_name,
    get_data_root,
    list_shared_uploads,
)

MAX_WAIT_SECONDS = 90.0  # raw files that were used in the last minute
IMAGE = re.compile(rb"image:([0-9a-f]{64}):")
HELD_IMAGE = re.compile(r'"sha256": "([0-9a-f]{64})"')


def find_artifacts(dumps: Iterable[Dump]) -> list[Artifact]:
    """Returns the artifacts with files of the steps of these dumps. If each prompt has an artifact, only those of which
    a dump has the prompt, and those that were never read."""
    found: dict[int, Artifact] = {}
    keys = {dump.source.removeprefix(Dump.ARTIFACT_PREFIX).partition("/")[0] for dump in dumps if dump.is_from_artifact}
    for dump in dumps:
        assert dump.step is not None, "its samples have a step"
        same_step = Artifact.objects.filter(
            run=dump.run_id, split=dump.split, step_kind=dump.step_kind, step=dump.step, forgotten_at=None
        )
        for artifact in same_step.exclude(role="tokenizer").select_related("run"):
            source = f"{Dump.ARTIFACT_PREFIX}{artifact.key}/"
            was_read = Dump.objects.filter(run=artifact.run_id, source__startswith=source, segment__isnull=False)
            if artifact.role != "async_rollout" or artifact.key in keys or not was_read.exists():
                found[artifact.pk] = artifact
    return list(found.values())


def drop_artifacts(forgotten: ForgottenPrompt, artifacts: Iterable[Artifact]) -> None:
    for artifact in artifacts:
        with transaction.atomic():
            Artifact.objects.select_for_update(no_key=True).filter(pk=artifact.pk).first()  # an upload may add a blob
            blobs = [get_blob_key(blob.project_id, blob.sha256) for blob in artifact.blobs.all()]
            add_pending(forgotten, blobs)
            drop_artifact_files(artifact)
            notify_run_changed(artifact.run, split=artifact.split, step=artifact.step, topics=("pins",))
        parts = get_data_root() / "incoming" / "parts"
        for file in artifact.files.values():
            for path in parts.glob(f"blob-{forgotten.project_id}-{file['sha256']}-*"):
                path.unlink(missing_ok=True)
            delete_shared_parts(get_blob_upload_name(forgotten.project_id, file["sha256"], file["bytes"]))


def find_images(dumps: Iterable[Dump], matches: BodyMatches) -> set[tuple[str, str]]:
    """Returns (owner, sha256) of the images of the rows to remove. Other rows may name them too."""
    found: set[tuple[str, str]] = set()
    for dump in dumps:
        removed = matches.ordinals.get(dump.pk, set())
        if dump.segment is None or not removed:
            continue
        for first, table in read_tables(dump.segment.path, None, matches):
            for row in range(table.num_rows):
                if first + row - dump.segment_offset in removed:
                    found |= {(dump.run.image_owner, digest) for digest in find_digests(table.slice(row, 1))}
    return found


def find_digests(table: pa.Table) -> set[str]:
    texts = (table[field.name].to_pylist() for field in table.schema if field.type == pa.string())
    return {digest.decode() for column in texts for text in column if text for digest in IMAGE.findall(text.encode())}


class UsedImages:
    """The images that bodies of a run, or evidence items of a project, still name. Each owner is read once."""

    def __init__(self) -> None:
        self.used: dict[str, set[str]] = {}

    def has(self, owner: str, digest: str) -> bool:
        if owner not in self.used:
            kind, _, pk = owner.partition("-")
            self.used[owner] = list_run_images(int(pk)) if kind == "run" else list_project_images(int(pk))
        return digest in self.used[owner]


def list_run_images(run: int) -> set[str]:
    """Raises FileNotFoundError if a body is missing: then nothing is known to be unused."""
    used: set[str] = set()
    for path in Segment.objects.filter(run=run).values_list("path", flat=True):
        with pq.ParquetFile(fetch_body_file(path)) as file:
            for group in range(file.metadata.num_row_groups):
                used |= find_digests(file.read_row_group(group))
    return used


def list_project_images(project: int) -> set[str]:
    items = EvidenceItem.objects.filter(finding__project=project).values_list("held", flat=True)
    return {digest for held in items.iterator() for digest in HELD_IMAGE.findall(held)}


def remove_pending_files(forgotten: ForgottenPrompt) -> list[str]:
    """Removes the files that no row needs, at once. Waits for raw files that an upload used in the last minute.

    Returns the names of the files that remain, while a backup runs or an upload uses them.
    """
    deadline = time.monotonic() + MAX_WAIT_SECONDS
    while True:
        images = UsedImages()
        with allow_deletion() as allowed:
            remaining = [name for name in forgotten.pending if not allowed or not remove_file(forgotten, name, images)]
        ForgottenPrompt.objects.filter(pk=forgotten.pk).update(pending=remaining)
        forgotten.pending = remaining
        if not remaining or time.monotonic() > deadline:
            return remaining
        time.sleep(1)


def remove_file(forgotten: ForgottenPrompt, name: str, images: UsedImages) -> bool:
    """Returns whether the file is gone, or belongs to a row again."""
    path, kind = PurePosixPath(name), name.partition("/")[0]
    match kind:
        case "raw" if Dump.objects.filter(run__project=forgotten.project_id, sha256=path.stem).exists():
            return not delete_unused_raw_files(forgotten.project_id, [path.stem])
        case "bodies" if Segment.objects.filter(path=name.removeprefix("bodies/")).exists():
            return True
        case "blobs" if Blob.objects.filter(project=forgotten.project_id, sha256=path.name).exists():
            return True
        case "images" if images.has(path.parent.parent.name, path.name):
            return True
    delete_file(name)
    return True


def count_uploads() -> int:
    """Returns the number of uploads in progress or abandoned. Their content is unknown."""
    incoming = get_data_root() / "incoming"
    files = {path.name for folder in (incoming, incoming / "parts") for path in list_folder(folder) if path.is_file()}
    return len(files.union(list_shared_uploads()))


def list_folder(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
