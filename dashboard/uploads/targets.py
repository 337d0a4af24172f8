"""What a body in front of Django is for: a dump of a run, or a file of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from django.http import Http404

from dashboard.uploads.body import PartialUpload
from rolloutdeck.protocol import MAX_DUMP_BYTES, Receipt
from rollouts.errors import InvalidInputError
from rollouts.ingest import DumpHeader, accept_dump, find_dump, requeue_resent_dump
from rollouts.models import Artifact, Blob, Dump, Run
from rollouts.pins import find_file_size, mark_upload_started, refresh_artifact, store_artifact_file
from rollouts.storage import count_part_bytes, ensure_parts_folder, get_blob_part_path
from workers import dispatch


@dataclass(frozen=True, slots=True)
class UploadResponse:
    """`offset`: how many bytes are here; `after`: what is to be published once it has been sent."""

    status: int
    body: Mapping[str, Any]
    offset: int | None = None
    after: Callable[[], None] | None = None


class IngestTarget(Protocol):
    """`most` plain bytes are taken; `verifies`: a body is read and verified although its bytes are here already."""

    @property
    def sha256(self) -> str: ...
    @property
    def most(self) -> int: ...
    @property
    def verifies(self) -> bool: ...

    def known(self) -> UploadResponse | None:
        """The receipt, where the bytes are here already."""

    def unknown(self) -> UploadResponse:
        """How far it is, where they are not all here."""

    def room(self, size: int) -> int:
        """Bytes of disk that `size` bytes take while they arrive."""

    def parts(self, total: int) -> PartialUpload:
        """Where they are gathered if they travel in parts. Raises BadInput."""

    def moved(self, before: int, have: int, total: int) -> None:
        """Another part is here."""

    def accept(self, plain: Path, size: int) -> UploadResponse:
        """Keeps the bytes; `plain` is gone afterwards. The caller has checked the hash. Raises StorageUnavailable."""


def build_receipt_response(
    sha256: str, size: int, created: bool, after: Callable[[], None] | None = None
) -> UploadResponse:
    given: Receipt = {"sha256": sha256, "bytes": size}
    return UploadResponse(201 if created else 200, dict(given), size, after)


@dataclass(frozen=True, slots=True)
class DumpTarget:
    run: Run
    header: DumpHeader
    sha256: str
    dump: Dump | None
    verifies: bool = False

    @property
    def most(self) -> int:
        return MAX_DUMP_BYTES

    @classmethod
    def find(cls, run: Run, header: DumpHeader, sha256: str, *, writing: bool) -> DumpTarget:
        known = find_dump(run, header, sha256)
        return cls(run, header, sha256, requeue_resent_dump(known) if known and writing else known)

    def known(self) -> UploadResponse | None:
        return self.told(self.dump, False) if self.dump else None

    def unknown(self) -> UploadResponse:
        return UploadResponse(404, {}, 0)

    def room(self, size: int) -> int:
        return 2 * size  # what arrives, and beside it what is kept

    def parts(self, total: int) -> PartialUpload:
        return PartialUpload(ensure_parts_folder() / f"{self.run.pk}-{self.sha256}-{total}", total)

    def moved(self, before: int, have: int, total: int) -> None:
        """Nobody looks at half a dump."""

    def accept(self, plain: Path, size: int) -> UploadResponse:
        return self.told(*accept_dump(self.run, self.header, self.sha256, plain, size))

    @staticmethod
    def told(dump: Dump, created: bool) -> UploadResponse:
        waits = dump.state == Dump.State.RECEIVED
        return build_receipt_response(
            dump.sha256, dump.bytes, created, partial(dispatch.send_dump, dump.pk) if waits else None
        )


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file that the artifact's manifest names; `size` in bytes, as it says."""

    artifact: Artifact
    sha256: str
    size: int
    verifies: bool = True
    MOVES: ClassVar[int] = 100  # pages hear of an arriving file at most so often

    @classmethod
    def find(cls, run: Run, key: str, sha256: str) -> FileTarget:
        """Raises Http404 for what no manifest of the run names."""
        artifact = Artifact.objects.select_related("run").filter(run=run, key=key).first()
        size = find_file_size(artifact, sha256) if artifact else None
        if artifact is None or size is None:
            raise Http404(f"This run has no artifact {key[:12]}… with a file {sha256[:12]}…; register it first.")
        return cls(artifact, sha256, size)

    @property
    def most(self) -> int:
        return self.size

    def known(self) -> UploadResponse | None:
        return self.told(refresh_artifact(self.artifact), False) if self.is_here() else None

    def is_here(self) -> bool:
        project = self.artifact.run.project_id
        return Blob.objects.filter(project=project, sha256=self.sha256, bytes=self.size).exists()

    def unknown(self) -> UploadResponse:
        return UploadResponse(404, {}, count_part_bytes(self.artifact.run.project_id, self.sha256, self.size))

    def room(self, size: int) -> int:
        return size

    def parts(self, total: int) -> PartialUpload:
        if total != self.size:
            raise InvalidInputError(f"The manifest says that this file has {self.size} bytes, Content-Range {total}.")
        return PartialUpload(get_blob_part_path(self.artifact.run.project_id, self.sha256, total), total)

    def moved(self, before: int, have: int, total: int) -> None:
        if self.MOVES * before // total != self.MOVES * have // total:
            mark_upload_started(self.artifact)

    def accept(self, plain: Path, size: int) -> UploadResponse:
        if size != self.size:
            plain.unlink(missing_ok=True)
            raise InvalidInputError(f"The manifest says that this file has {self.size} bytes; {size} came.")
        created = not self.is_here()
        return self.told(store_artifact_file(self.artifact, self.sha256, plain, size), created)

    def told(self, artifact: Artifact, created: bool) -> UploadResponse:
        after = partial(dispatch.send_artifact, artifact.pk) if artifact.due else None
        return build_receipt_response(self.sha256, self.size, created, after)
