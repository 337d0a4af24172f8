"""Brings one spool file to the server and judges the answer. Removes nothing and waits for nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from rolloutdeck.client import artifact, artifact_uploads, spool
from rolloutdeck.lib import (
    FileSlice,
    RunClient,
    ServerClient,
    ServerResponse,
    ServerUnreachableError,
    build_run_headers,
)
from rolloutdeck.protocol import MAX_PART_BYTES, SpoolHeader

ARTIFACT = ("path", "role", "step", "step_kind", "split", "files", "facts", "send_now")  # what `log_artifact` writes
MAX_METRICS_BATCH_BYTES = 1 << 19  # of waiting points that travel together; a server takes 10,000 points in one request
MAX_SERVER_PAUSE = 300.0
UPLOAD_TIMEOUT = 30.0  # seconds of one request

UploadState = Literal["sent", "rejected", "kept", "later", "unreachable", "gone"]


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """What became of a file. `sent`: the server has it. `rejected`: it never will. `kept`: a person must act first
    (token, project). `later`: this file failed, try it again. `unreachable`: nobody answers, or nobody who is ours.
    `gone`: another process has it. `pause` in seconds where the server asked for one. `denied`: the token is refused.
    """

    verdict: UploadState
    reason: str = ""
    pause: float = 0.0
    denied: bool = False
    data: Any = None


FILE_GONE = UploadOutcome("gone")


def upload_spool_files(server: ServerClient, files: Sequence[spool.SpoolFile]) -> UploadOutcome:
    """Sends one file, or several `metrics` files of one run and attempt in one request."""
    try:
        header, start = spool.read_spool_header(files[0].path)
        return _deliver(server, files, header, start)
    except ServerUnreachableError as error:
        return UploadOutcome("unreachable", str(error))
    except FileNotFoundError:
        return FILE_GONE
    except ValueError as error:
        return UploadOutcome("rejected", f"not a whole spool file: {error}")
    except OSError as error:
        return UploadOutcome("later", f"can't be read: {error}")


def _deliver(server: ServerClient, files: Sequence[spool.SpoolFile], header: SpoolHeader, start: int) -> UploadOutcome:
    about, uid = build_run_headers(header), quote(header["uid"], safe="")
    if header["kind"] == "dump":
        return _Upload(server, files[0].path, header, start, about).send()
    if header["kind"] == "artifact":
        return _register(server, header, _told(files[0].path, ARTIFACT))
    if header["kind"] == "metrics":
        points = [point for file in files for point in _told(file.path, ("points",))["points"]]
        body: Any = {"attempt": header["attempt"], "points": points}
        path = f"runs/{uid}/metrics/"
    else:
        body = _json_body(files[0].path)
        path = {"run": "runs/", "replay": f"runs/{uid}/replays/"}.get(header["kind"], f"runs/{uid}/finish/")
        if header["kind"] == "run" and isinstance(body, dict):
            body["waited"] = spool.compute_file_age(files[0])
    answer = server.send_json("POST", path, body, headers=about, timeout=UPLOAD_TIMEOUT)
    return UploadOutcome("sent", data=answer.json()) if answer.is_success else classify_response(answer)


def _register(server: ServerClient, header: SpoolHeader, told: Mapping[str, Any]) -> UploadOutcome:
    """Hashes the files that were named where they lie, and tells the server. `data`: the run's uid, the artifact."""
    path = Path(told["path"])
    try:
        found = artifact.build_path_artifact(path, told)
    except artifact.FileChangedError as error:
        return UploadOutcome("later", str(error))
    except (OSError, ValueError) as error:
        return UploadOutcome("rejected", f"{path} can't be kept: {getattr(error, 'strerror', None) or error}")
    command = artifact.build_import_command(path, header["project"], header["name"], header["attempt"])
    ask = RunClient(server, header).request
    answer = artifact_uploads.register_artifact(ask, found, header["attempt"], command, told["send_now"])
    if not answer.is_success:
        return classify_response(answer)
    if told["send_now"] and (trouble := _send_now(ask, found, answer.json())):
        return trouble
    return UploadOutcome("sent", data=(header["uid"], found))


def _send_now(ask: artifact_uploads.RequestFunction, found: artifact.LocalArtifact, told: Any) -> UploadOutcome | None:
    """Brings over what the server lacks; None when it has all. The spool file stays until then."""
    problems: list[str] = []
    sending = artifact_uploads.ArtifactUploadQueue(say=problems.append)
    sending.put(found, told.get("missing", ()) if isinstance(told, dict) else ())
    while answer := sending.send(ask):
        if not answer.is_success and not problems:
            return classify_response(answer)
    return UploadOutcome("rejected", problems[0]) if problems else None


def classify_response(answer: ServerResponse) -> UploadOutcome:
    """What an answer that is no receipt means for the file."""
    status, reason = answer.status, answer.error_message
    if not answer.is_from_server:
        return UploadOutcome("unreachable", reason, _pause(answer))
    if status in (400, 413, 415):
        return UploadOutcome("rejected", reason)
    if status in (408, 416, 429) or status >= 500:
        return UploadOutcome("later", reason, _pause(answer))
    if status == 409:
        return UploadOutcome("later", reason)
    return UploadOutcome("kept", reason, denied=status == 401)


def _pause(answer: ServerResponse) -> float:
    """Seconds of Retry-After; 0 where there is none (a date is none)."""
    asked = answer.headers.get("retry-after", "")
    return min(float(asked), MAX_SERVER_PAUSE) if asked.isdecimal() else 0.0


def _json_body(path: Path) -> Any:
    _, start = spool.read_spool_header(path)
    with path.open("rb") as file:
        file.seek(start)
        return json.loads(file.read())


def _told(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """The body of a file that has to have these keys. Raises OSError, ValueError."""
    body = _json_body(path)
    if not isinstance(body, dict) or (missing := [key for key in keys if key not in body]):
        raise ValueError(f"its body does not say {', '.join(missing if isinstance(body, dict) else keys)}")
    return body


class _Upload:
    """One dump on its way, whole or in parts that the server keeps, so that an interruption costs one part."""

    def __init__(
        self,
        server: ServerClient,
        path: Path,
        header: SpoolHeader,
        start: int,
        about: dict[str, str],
    ) -> None:
        self.server, self.path, self.header, self.start = server, path, header, start
        self.about, self.total = about, header["bytes"]
        self.address = f"runs/{quote(header['uid'], safe='')}/dumps/{header['sha256']}/"

    def send(self) -> UploadOutcome:
        with self.path.open("rb") as file:
            if file.seek(0, 2) != self.start + self.total:
                return UploadOutcome("rejected", "the file is shorter or longer than its header says")
            if self.total <= MAX_PART_BYTES:
                return self._judge(self._put(FileSlice(file, self.start, self.total)))
            return self._parts(file)

    def _parts(self, file: Any) -> UploadOutcome:
        answer = self._put(b"", f"bytes */{self.total}")
        for _ in range(2 * self.total // MAX_PART_BYTES + 4):  # an end, whatever the server says
            if answer.status != 202 or not answer.is_from_server:
                break
            at = _received(answer, self.total)
            length = min(MAX_PART_BYTES, self.total - at)
            span = f"bytes {at}-{at + length - 1}/{self.total}"
            answer = self._put(FileSlice(file, self.start + at, length), span)
        return self._judge(answer)

    def _put(self, body: bytes | FileSlice, span: str = "") -> ServerResponse:
        headers = {**self.about, "Content-Type": "application/octet-stream"}
        if span:
            headers["Content-Range"] = span
        return self.server.request(
            "PUT", self.address, query=self.header.get("query"), body=body, headers=headers, timeout=UPLOAD_TIMEOUT
        )

    def _judge(self, answer: ServerResponse) -> UploadOutcome:
        if answer.is_success:
            receipt = answer.json()
            if not isinstance(receipt, dict):
                return UploadOutcome("later", f"the answer ({answer.status}) is no receipt")
            if (receipt.get("sha256"), receipt.get("bytes")) == (self.header["sha256"], self.total):
                return UploadOutcome("sent", data=receipt)
            return UploadOutcome("later", "the receipt is for other bytes than were sent")
        if answer.is_from_server and answer.status == 409 and self._damaged():
            return UploadOutcome("rejected", "the file was damaged on this disk: its bytes have another hash")
        return classify_response(answer)

    def _damaged(self) -> bool:
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self.start)
            while piece := file.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest() != self.header["sha256"]


def _received(answer: ServerResponse, total: int) -> int:
    """How many bytes the server has; 0 when it doesn't say, which sends from the start."""
    found = answer.json()
    received = found.get("received") if isinstance(found, dict) else None
    return received if isinstance(received, int) and 0 <= received < total else 0
