"""Artifacts that this process registered with a server, and the upload of the files that the server requests.

Only files of artifacts that were added to the queue are uploaded: the server requests artifacts, never paths. This
module neither waits nor starts threads; one `upload_next` is one request.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.client.artifact import FileStamp, LocalArtifact, cache_file_hash, read_file_stamp
from rolloutdeck.client.process_identity import get_host_name
from rolloutdeck.client.upload.parts import build_part_headers, is_receipt, read_next_part
from rolloutdeck.lib import FileSlice, ServerResponse
from rolloutdeck.protocol import MAX_PART_BYTES

MAX_MISMATCH_RETRIES = 3  # of a file that arrives with another hash
MISSING_FILE_ERRORS = (FileNotFoundError, NotADirectoryError)  # others may pass, as when a file server restarts

RequestFunction = Callable[..., ServerResponse]  # request(method, path below the run's URL, query=, body=, headers=)


@dataclass(frozen=True)
class UploadRequest:
    """A file of an artifact that the server requests."""

    artifact: LocalArtifact
    key: str
    name: str

    @property
    def path(self) -> Path:
        return self.artifact.path / self.name

    @property
    def sha256(self) -> str:
        return str(self.artifact.files[self.name]["sha256"])

    @property
    def size(self) -> int:
        return int(self.artifact.files[self.name]["bytes"])

    def is_unchanged(self) -> bool:
        """Whether the file still has the stamp that it had when it was hashed. Raises OSError if this is unknown."""
        try:
            return read_file_stamp(self.path) == tuple(self.artifact.stamps[self.name])
        except MISSING_FILE_ERRORS:
            return False


def register_artifact(
    request: RequestFunction,
    artifact: LocalArtifact,
    attempt: str,
    command: str,
    send_now: bool = False,
    missing_reason: str = "",
) -> ServerResponse:
    """Registers an artifact with the server. A successful response has `id state missing`.

    `command` is the shell command that uploads the files from this machine. `missing_reason` says why they can't be
    uploaded any more.
    """
    fields = {name: getattr(artifact, name) for name in ("split", "step_kind", "step", "role", "files", "facts")}
    origin = {"host": get_host_name(), "path": str(artifact.path), "command": command}
    body = {"attempt": attempt, **fields, "origin": origin, "send_now": send_now, "gone": missing_reason}
    return request("PUT", "artifacts/", body=json.dumps(body).encode(), headers={"Content-Type": "application/json"})


def fetch_requested_files(request: RequestFunction) -> ServerResponse:
    """Asks which files the server requests from this host. A successful response has `files`."""
    return request("GET", "wanted/", query={"host": get_host_name()})


class ArtifactUploadQueue:
    """The artifacts of this process and the files of them that wait for upload.

    `state_file` stores the artifacts for later processes, one JSON line per artifact; None stores nothing. Two threads
    may use the queue: one adds requested files, the other uploads. `retries_reading`: a file that exists and can't be
    read stays in the queue.
    """

    def __init__(
        self,
        state_file: Path | None = None,
        on_message: Callable[[str], None] = lambda _: None,
        *,
        retries_reading: bool = False,
    ) -> None:
        self.state_file: Path | None = None
        self._on_message, self._retries_reading = on_message, retries_reading
        self.artifacts: dict[str, LocalArtifact] = {}
        self.sent: list[UploadRequest] = []
        # Artifacts and reasons. The owner of the queue reports them to the server.
        self.missing_artifacts: deque[tuple[LocalArtifact, str]] = deque()
        self._stamps: dict[tuple[Path, frozenset[str]], dict[str, FileStamp]] = {}
        self._pending: deque[UploadRequest] = deque()
        self._rejected: set[tuple[str, str]] = set()
        self._mismatches: Counter[tuple[str, str]] = Counter()
        self._current_requests: Iterator[ServerResponse] | None = None
        self._lock = threading.Lock()
        if state_file:
            self.persist_to(state_file)

    @property
    def pending_uploads(self) -> tuple[UploadRequest, ...]:
        """The files that wait for upload, the next one first."""
        return tuple(self._pending)

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def is_registered(self, path: Path, stamps: Mapping[str, FileStamp]) -> bool:
        """Whether an artifact with exactly these files and stamps was registered."""
        return self._stamps.get((path, frozenset(stamps))) == dict(stamps)

    def add(self, artifact: LocalArtifact, missing: Collection[str] = ()) -> None:
        """Adds a registered artifact. Files whose sha256 is in `missing` are uploaded now. If the disk is full, only
        later processes do not know the artifact."""
        key = artifact.key
        self._store(key, artifact)
        names = [name for name, file in artifact.files.items() if file["sha256"] in missing]
        self._enqueue(UploadRequest(artifact, key, name) for name in names)
        if self.state_file:
            try:
                _append_line(self.state_file, {**asdict(artifact), "path": str(artifact.path), "key": key})
            except OSError as error:
                self._on_message(f"{artifact.path} is not remembered for later processes: {error.strerror or error}")

    def forget_registered(self) -> None:
        """Forgets all artifacts, also for later processes. Their files are not hashed again."""
        self.artifacts.clear()
        self._stamps.clear()
        if self.state_file:
            with suppress(OSError):
                self.state_file.unlink(missing_ok=True)

    def enqueue_requested(self, files: Any) -> None:
        """Enqueues the `files` of a `wanted/` response. Files of other processes' artifacts are ignored."""
        for requested in files if isinstance(files, list) else ():
            artifact = self.artifacts.get(str(requested.get("artifact"))) if isinstance(requested, dict) else None
            names = [name for name in artifact.files if name == requested.get("path")] if artifact else []
            self._enqueue(UploadRequest(artifact, requested["artifact"], name) for name in names)  # type: ignore[arg-type]

    def upload_next(self, request: RequestFunction) -> ServerResponse | None:
        """Sends one request for the first file of the queue. Returns its response; None if the queue is empty.

        A file is finished when the server confirms it with a receipt or rejects it permanently. After any other
        response the next call tries again, from the offset that the server reports. Other bytes than those of the file
        are a permanent rejection only after some tries. Raises what `request` raises; with `retries_reading` also the
        OSError of a file that can't be read now, which is then the last one of the queue.
        """
        while upload := self._next_available():
            self._current_requests = self._current_requests or _send_file(request, upload)
            try:
                response = next(self._current_requests)
                break
            except OSError as error:
                self._drop_unreadable(upload, error)
            except BaseException:
                self._current_requests = None
                raise
        else:
            return None
        if response.is_success and response.status != 202:
            self.sent.append(upload)
            self._finish_upload()
        elif self._is_retried(upload, response):
            self._current_requests = None
        elif is_permanent_rejection(response):
            self._reject_upload(upload, f"{upload.path} was rejected: {response.error_message}")
        elif not response.is_success:
            self._current_requests = None
        return response

    def _is_retried(self, upload: UploadRequest, response: ServerResponse) -> bool:
        """Whether a file is sent again from its start, because the server received other bytes.

        A server that lost power during the upload may have lost some of the bytes that it had confirmed.
        """
        if not is_hash_mismatch(response):
            return False
        self._mismatches[upload.key, upload.name] += 1
        return self._mismatches[upload.key, upload.name] <= MAX_MISMATCH_RETRIES

    def _next_available(self) -> UploadRequest | None:
        """Returns the first file of the queue, after dropping files that are missing or changed."""
        while self._pending:
            with self._lock:
                upload = self._pending[0]
            try:
                if self._current_requests or upload.is_unchanged():
                    return upload
            except OSError as error:
                self._drop_unreadable(upload, error)
            else:
                self._drop_missing(upload, f"{upload.path} is gone or has changed since it was registered")
        return None

    def _enqueue(self, uploads: Iterable[UploadRequest]) -> None:
        with self._lock:
            known = {(upload.key, upload.name) for upload in self._pending} | self._rejected
            self._pending.extend(upload for upload in uploads if (upload.key, upload.name) not in known)

    def _finish_upload(self) -> None:
        self._current_requests = None
        with self._lock:
            self._pending.popleft()

    def _drop_unreadable(self, upload: UploadRequest, error: OSError) -> None:
        """Drops the first file of the queue. If the error may pass, raises it instead, and the file is tried last."""
        if self._retries_reading and not isinstance(error, MISSING_FILE_ERRORS):
            self._current_requests = None
            with self._lock:
                self._pending.rotate(-1)
            raise error
        self._drop_missing(upload, f"{upload.path} can't be read ({error.strerror or error})")

    def _drop_missing(self, upload: UploadRequest, reason: str) -> None:
        if not any(artifact is upload.artifact for artifact, _ in self.missing_artifacts):
            self.missing_artifacts.append((upload.artifact, reason))
        self._reject_upload(upload, reason)

    def _reject_upload(self, upload: UploadRequest, reason: str) -> None:
        self._rejected.add((upload.key, upload.name))
        self._finish_upload()
        self._on_message(reason)

    def _store(self, key: str, artifact: LocalArtifact) -> None:
        self.artifacts[key] = artifact
        self._stamps[artifact.path, frozenset(artifact.stamps)] = dict(artifact.stamps)
        for name, file in artifact.files.items():
            cache_file_hash(artifact.path / name, artifact.stamps[name], file["sha256"])

    def persist_to(self, state_file: Path) -> None:
        """Stores the artifacts in `state_file` from now on and loads those that an earlier process stored there.

        A damaged line is skipped: its artifact is hashed and registered again.
        """
        self.state_file = state_file
        try:
            lines = state_file.read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            try:
                fields = json.loads(line)
                stamps = {name: tuple(stamp) for name, stamp in fields.pop("stamps").items()}
                key, path = fields.pop("key"), Path(fields.pop("path"))
                self._store(key, LocalArtifact(path=path, stamps=stamps, **fields))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue


def is_permanent_rejection(response: ServerResponse) -> bool:
    """Whether the server will never accept this file from this client."""
    return response.is_from_server and response.status in (400, 404, 409, 413, 415)


def is_hash_mismatch(response: ServerResponse) -> bool:
    """Whether the server received other bytes than those of the file. It has deleted them."""
    data = response.json() if response.is_from_server and response.status == 409 else None
    error = data.get("error") if isinstance(data, dict) else None
    return isinstance(error, dict) and error.get("code") == "hash_mismatch"


def _send_file(request: RequestFunction, upload: UploadRequest) -> Iterator[ServerResponse]:
    """Yields the responses of the requests that upload a file. Raises OSError and like `request`."""
    url = f"artifacts/{upload.key}/files/{upload.sha256}/"

    def put(body: bytes | FileSlice, content_range: str = "") -> ServerResponse:
        response = request("PUT", url, body=body, headers=build_part_headers(content_range))
        if not response.is_success or response.status == 202 or is_receipt(response, upload.sha256, upload.size):
            return response
        # A successful response without a matching receipt is not from our server: the file stays.
        return ServerResponse(response.status, {**response.headers}, response.body, is_from_server=False)

    with upload.path.open("rb") as file:
        if upload.size <= MAX_PART_BYTES:
            yield put(FileSlice(file, 0, upload.size))
            return
        response = put(b"", f"bytes */{upload.size}")
        yield response
        while response.is_success and response.status == 202:
            response = put(*read_next_part(response, file, upload.size))
            yield response


def _append_line(path: Path, fields: Mapping[str, Any]) -> None:
    """Appends one line. A line that a power cut or a full disk left incomplete is ended first. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        start = b"\n" if file.read(1) not in (b"", b"\n") else b""
        file.write(start + json.dumps(fields).encode() + b"\n")
