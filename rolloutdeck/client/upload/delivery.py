"""Uploads one spool file and classifies the response. Deletes no files and does not wait."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rolloutdeck.client import artifact, spool
from rolloutdeck.client.upload import artifact_uploads, parts
from rolloutdeck.lib import FileSlice, RunClient, ServerClient, ServerResponse, ServerUnreachableError
from rolloutdeck.protocol import MAX_PART_BYTES, WAITED_HEADER, SpoolHeader

# The keys of the body that `log_artifact` writes.
ARTIFACT_KEYS = ("path", "role", "step", "step_kind", "split", "files", "facts", "send_now")
MAX_METRICS_BATCH_BYTES = 1 << 19  # of metrics files in one request; a server accepts 10,000 points in one request
MAX_SERVER_PAUSE = 300.0
UPLOAD_TIMEOUT = 30.0  # seconds of one request

UploadState = Literal["sent", "rejected", "action_required", "later", "unreachable", "taken_over"]


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """The result of an upload.

    `state` is one of:
    - `sent`: the server has the file.
    - `rejected`: the server will never accept it.
    - `action_required`: the user must act first (token, project).
    - `later`: this file failed, retry it. Or a proxy answered instead of the server: it may refuse only this file.
    - `unreachable`: no response.
    - `taken_over`: another process has the file.

    `pause` is in seconds, if the server asked for one. `is_token_refused`: the server refuses the token. `data` is the
    JSON of the response; for an artifact the run's uid and the artifact.
    """

    state: UploadState
    reason: str = ""
    pause: float = 0.0
    is_token_refused: bool = False
    data: Any = None


FILE_TAKEN_OVER = UploadOutcome("taken_over")


def upload_spool_files(server: ServerClient, files: Sequence[spool.SpoolFile]) -> UploadOutcome:
    """Uploads one file, or several `metrics` files of one run and attempt in one request."""
    try:
        header, start = spool.read_spool_header(files[0].path)
        return _upload(server, files, header, start)
    except ServerUnreachableError as error:
        return UploadOutcome("unreachable", str(error))
    except FileNotFoundError:
        return FILE_TAKEN_OVER
    except ValueError as error:
        return UploadOutcome("rejected", f"not a complete spool file: {error}")
    except OSError as error:
        return UploadOutcome("later", f"can't be read: {error}")


def _upload(
    server: ServerClient, files: Sequence[spool.SpoolFile], header: SpoolHeader, body_start: int
) -> UploadOutcome:
    client = RunClient(server, header, UPLOAD_TIMEOUT)
    if header["kind"] == "dump":
        return _Upload(client, files[0].path, header, body_start).send()
    if header["kind"] == "artifact":
        return _register_artifact(client, header, _read_body(files[0].path, ARTIFACT_KEYS))
    if header["kind"] == "metrics":
        points = [point for file in files for point in _read_body(file.path, ("points",))["points"]]
        response = client.send_json("POST", "metrics/", {"attempt": header["attempt"], "points": points})
    elif header["kind"] == "run":
        body = _read_json_body(files[0].path)
        if isinstance(body, dict):
            body["waited"] = int(spool.compute_file_age(files[0]))
        response = server.send_json("POST", "runs/", body, headers=client.headers, timeout=UPLOAD_TIMEOUT)
    elif header["kind"] == "context":
        response = client.send_json("POST", "context/", _read_json_body(files[0].path))
        if response.is_from_server and response.status in (404, 405):  # an older server, which does not show it
            return UploadOutcome("sent")
    else:
        path = "replays/" if header["kind"] == "replay" else "finish/"
        client.headers[WAITED_HEADER] = f"{spool.compute_file_age(files[0]):.3f}"
        response = client.send_json("POST", path, _read_json_body(files[0].path))
    return UploadOutcome("sent", data=response.json()) if response.is_success else classify_response(response)


def _register_artifact(client: RunClient, header: SpoolHeader, manifest: Mapping[str, Any]) -> UploadOutcome:
    """Hashes the files of a `log_artifact` call and registers them. `data` is the run's uid and the artifact."""
    path = Path(manifest["path"])
    try:
        local_artifact = artifact.build_path_artifact(path, manifest)
    except artifact.FileChangedError as error:
        return UploadOutcome("later", str(error))
    except (OSError, ValueError) as error:
        return UploadOutcome("rejected", f"{path} can't be registered: {getattr(error, 'strerror', None) or error}")
    command = artifact.build_import_command(path, header["project"], header["name"], header["attempt"])
    request, attempt, send_now = client.request, header["attempt"], manifest["send_now"]
    response = artifact_uploads.register_artifact(request, local_artifact, attempt, command, send_now)
    if not response.is_success:
        return classify_response(response)
    if send_now and (failure := _upload_missing_files(request, local_artifact, response.json())):
        return failure
    return UploadOutcome("sent", data=(header["uid"], local_artifact))


def _upload_missing_files(
    request: artifact_uploads.RequestFunction, local_artifact: artifact.LocalArtifact, data: Any
) -> UploadOutcome | None:
    """Uploads the files that the server lacks. Returns None when it has all; the spool file stays until then.

    Raises OSError if a file can't be read now.
    """
    errors: list[str] = []
    queue = artifact_uploads.ArtifactUploadQueue(on_message=errors.append, retries_reading=True)
    queue.add(local_artifact, data.get("missing", ()) if isinstance(data, dict) else ())
    while response := queue.upload_next(request):
        if not response.is_success and not artifact_uploads.is_permanent_rejection(response):
            return classify_response(response)
    return UploadOutcome("rejected", errors[0]) if errors else None


def classify_response(response: ServerResponse) -> UploadOutcome:
    """Returns what a response without a receipt means for the file."""
    status, reason = response.status, response.error_message
    if not response.is_from_server:
        return UploadOutcome("later", reason, min(response.retry_after, MAX_SERVER_PAUSE))
    if status in (400, 413, 415):
        return UploadOutcome("rejected", reason)
    if status in (408, 416, 429) or status >= 500:
        return UploadOutcome("later", reason, min(response.retry_after, MAX_SERVER_PAUSE))
    if status == 409:
        return UploadOutcome("later", reason)
    return UploadOutcome("action_required", reason, is_token_refused=status == 401)


def _read_json_body(path: Path) -> Any:
    _, start = spool.read_spool_header(path)
    with path.open("rb") as file:
        file.seek(start)
        return json.loads(file.read())


def _read_body(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Returns the JSON body of a file that must have these keys. Raises OSError or ValueError."""
    body = _read_json_body(path)
    if not isinstance(body, dict) or (missing := [key for key in keys if key not in body]):
        raise ValueError(f"its body lacks {', '.join(missing if isinstance(body, dict) else keys)}")
    return body


class _Upload:
    """Uploads one dump, complete or in parts that the server stores, so that an interruption costs one part."""

    def __init__(self, client: RunClient, path: Path, header: SpoolHeader, body_start: int) -> None:
        self.client, self.path, self.header, self.body_start = client, path, header, body_start
        self.total, self.url = header["bytes"], f"dumps/{header['sha256']}/"

    def send(self) -> UploadOutcome:
        with self.path.open("rb") as file:
            if file.seek(0, 2) != self.body_start + self.total:
                return UploadOutcome("rejected", "the file is shorter or longer than its header says")
            if self.total <= MAX_PART_BYTES:
                return self._classify(self._put(FileSlice(file, self.body_start, self.total)))
            return self._send_parts(file)

    def _send_parts(self, file: Any) -> UploadOutcome:
        response = self._put(b"", f"bytes */{self.total}")
        for _ in range(2 * self.total // MAX_PART_BYTES + 4):  # ends, whatever the server responds
            if response.status != 202 or not response.is_from_server:
                break
            response = self._put(*parts.read_next_part(response, file, self.total, self.body_start))
        return self._classify(response)

    def _put(self, body: bytes | FileSlice, content_range: str = "") -> ServerResponse:
        headers = parts.build_part_headers(content_range)
        return self.client.request("PUT", self.url, query=self.header.get("query"), body=body, headers=headers)

    def _classify(self, response: ServerResponse) -> UploadOutcome:
        if response.is_success:
            if parts.is_receipt(response, self.header["sha256"], self.total):
                return UploadOutcome("sent", data=response.json())
            return UploadOutcome("later", f"the response ({response.status}) is not a receipt for the sent bytes")
        if response.is_from_server and response.status == 409 and self._is_damaged():
            return UploadOutcome("rejected", "the file is damaged on this disk: its bytes have a different hash")
        return classify_response(response)

    def _is_damaged(self) -> bool:
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self.body_start)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest() != self.header["sha256"]
