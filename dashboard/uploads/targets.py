"""What an upload is: a dump of a run, or a file of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from dashboard import permissions
from dashboard.uploads.receive import PartialUpload
from rolloutdeck.protocol import MAX_DUMP_BYTES, Receipt
from rollouts.errors import InvalidInputError
from rollouts.ingest import DumpHeader, accept_dump, find_dump, has_lost_bytes, requeue_resent_dump
from rollouts.models import Artifact, Blob, Dump, Run
from rollouts.pins import mark_upload_started, refresh_artifact, store_artifact_file
from rollouts.storage import count_part_bytes, ensure_parts_folder, get_blob_part_path
from workers import dispatch


@dataclass(frozen=True, slots=True)
class UploadResponse:
    """`offset`: number of stored bytes. `after`: called when the response has been sent."""

    status: int
    body: Mapping[str, Any]
    offset: int | None = None
    after: Callable[[], object] | None = None


def build_receipt_response(sha256: str, size: int, created: bool, after: Callable[[], object] | None) -> UploadResponse:
    receipt: Receipt = {"sha256": sha256, "bytes": size}
    return UploadResponse(201 if created else 200, dict(receipt), size, after)


@dataclass(frozen=True, slots=True)
class DumpTarget:
    run: Run
    header: DumpHeader
    sha256: str
    dump: Dump | None
    max_bytes: int  # plain
    always_verifies: ClassVar[bool] = False  # whether a body is verified also if its bytes are stored already

    @classmethod
    def find(cls, run: Run, header: DumpHeader, sha256: str, is_put: bool) -> DumpTarget:
        dump = find_dump(run, header, sha256)
        if dump and is_put:
            dump = requeue_resent_dump(dump)
        return cls(run, header, sha256, dump, MAX_DUMP_BYTES)

    def build_known_response(self) -> UploadResponse | None:
        """The receipt if all bytes are stored already."""
        return self._build_response(self.dump, False) if self.dump and not has_lost_bytes(self.dump) else None

    def count_stored_bytes(self) -> int:
        """Of an incomplete file."""
        return 0

    def compute_required_space(self, size: int) -> int:
        """Bytes of disk space during the upload: the incoming file and the stored one."""
        return 2 * size

    def get_partial_upload(self, total: int) -> PartialUpload:
        return PartialUpload(ensure_parts_folder() / f"{self.run.pk}-{self.sha256}-{total}", total)

    def report_progress(self, before: int, now: int, total: int) -> None:
        """No page shows an incomplete dump."""

    def accept(self, path: Path, size: int) -> UploadResponse:
        """Stores the file and removes `path`. The caller has checked the hash. Raises StorageUnavailableError."""
        return self._build_response(*accept_dump(self.run, self.header, self.sha256, path, size))

    def _build_response(self, dump: Dump, created: bool) -> UploadResponse:
        after = partial(dispatch.send_dump, dump.pk) if dump.state == Dump.State.RECEIVED else None
        return build_receipt_response(dump.sha256, dump.bytes, created, after)


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file in the artifact's manifest, which has its size `max_bytes`."""

    artifact: Artifact
    sha256: str
    max_bytes: int
    always_verifies: ClassVar[bool] = True
    MAX_NOTIFICATIONS: ClassVar[int] = 100  # to pages, about the progress of one file

    @classmethod
    def find(cls, run: Run, key: str, sha256: str) -> FileTarget:
        """Raises Http404 if no manifest of the run has the file."""
        artifact, size = permissions.artifact_file_or_404(run, key, sha256)
        return cls(artifact, sha256, size)

    @property
    def is_stored(self) -> bool:
        project = self.artifact.run.project_id
        return Blob.objects.filter(project=project, sha256=self.sha256, bytes=self.max_bytes).exists()

    def build_known_response(self) -> UploadResponse | None:
        return self._build_response(refresh_artifact(self.artifact), False) if self.is_stored else None

    def count_stored_bytes(self) -> int:
        return count_part_bytes(self.artifact.run.project_id, self.sha256, self.max_bytes)

    def compute_required_space(self, size: int) -> int:
        return size

    def get_partial_upload(self, total: int) -> PartialUpload:
        self._check_size(total)
        return PartialUpload(get_blob_part_path(self.artifact.run.project_id, self.sha256, total), total)

    def report_progress(self, before: int, now: int, total: int) -> None:
        if self.MAX_NOTIFICATIONS * before // total != self.MAX_NOTIFICATIONS * now // total:
            mark_upload_started(self.artifact)

    def accept(self, path: Path, size: int) -> UploadResponse:
        if size != self.max_bytes:
            path.unlink(missing_ok=True)
        self._check_size(size)
        created = not self.is_stored
        return self._build_response(store_artifact_file(self.artifact, self.sha256, path, size), created)

    def _check_size(self, size: int) -> None:
        if size != self.max_bytes:
            raise InvalidInputError(f"The file has {self.max_bytes} bytes in the manifest, but {size} in the request.")

    def _build_response(self, artifact: Artifact, created: bool) -> UploadResponse:
        after = partial(dispatch.send_now, "check_artifact", artifact.pk) if artifact.due else None
        return build_receipt_response(self.sha256, self.max_bytes, created, after)


UploadTarget = DumpTarget | FileTarget
