"""Uploads parts of files to a run on the server, and turns its responses into exceptions for the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rolloutdeck.client import build_part_headers, classify_response, is_receipt, parse_received_bytes, read_next_part
from rolloutdeck.lib import FileSlice, ServerClient, ServerResponse, ServerUnreachableError, build_run_headers
from rolloutdeck.protocol import MAX_PART_BYTES
from rolloutdeck.watch.file_parts import FilePart

UploadProgress = Callable[[int], None]


class RetryLaterError(Exception):
    """The server does not respond, or asks to retry; the same call may succeed later.

    `pause`: seconds, if it asks for a pause.
    """

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = pause


class ActionRequiredError(RetryLaterError):
    """The server responds, but the user must act first: a token, a project, a run in the trash."""


class UploadRejectedError(Exception):
    """The server will never accept these bytes. `changed`: the file changed while it was sent, so read it again."""

    def __init__(self, message: str, changed: bool = False) -> None:
        super().__init__(message)
        self.changed = changed


def parse_response(response: ServerResponse) -> Any:
    """Returns the JSON of a successful response.

    Raises UploadRejectedError, RetryLaterError or ActionRequiredError otherwise.
    """
    if response.is_success:
        return response.json()
    outcome = classify_response(response)
    if response.is_from_server and response.status == 409:
        raise UploadRejectedError(outcome.reason, changed=True)
    if outcome.state == "rejected":
        raise UploadRejectedError(outcome.reason)
    raise (ActionRequiredError if outcome.state == "action_required" else RetryLaterError)(
        outcome.reason, outcome.pause
    )


@dataclass
class UploadTarget:
    """One run of one project. `uid` is the server's run id, once `open_run` has succeeded. `server_id` is that of the
    server, "" if an older one does not say it."""

    server: ServerClient
    project: str
    name: str
    attempt: str
    uid: str = ""
    framework: str = ""
    tags: list[str] = field(default_factory=list)
    url: str = ""
    server_id: str = ""
    created: bool = False
    warning: str = ""  # of the server in the last receipt that had one
    response_count: int = 0  # all responses, also errors

    def request(self, method: str, path: str, **options: Any) -> ServerResponse:
        """Sends one request. Raises RetryLaterError."""
        return self._count_response(lambda: self.server.request(method, path, **options))

    def _send_json(self, method: str, path: str, data: Any, **options: Any) -> ServerResponse:
        return self._count_response(lambda: self.server.send_json(method, path, data, **options))

    def _count_response(self, send: Callable[[], ServerResponse]) -> ServerResponse:
        try:
            response = send()
        except ServerUnreachableError as error:
            raise RetryLaterError(f"the server does not respond: {error}") from error
        self.response_count += 1
        return response

    def request_run(self, method: str, path: str, **options: Any) -> ServerResponse:
        """Sends a request with `path` relative to the run's URL. Raises RetryLaterError."""
        headers = {**self._build_headers(), **options.pop("headers", {})}
        return self.request(method, f"{self.path}{path}", headers=headers, **{"timeout": 120.0, **options})

    def open_run(self) -> None:
        """Finds or creates the run; a run with a known name is continued.

        Raises UploadRejectedError, RetryLaterError or ActionRequiredError.
        """
        body = {"project": self.project, "name": self.name, "attempt": self.attempt, "resume": "allow"}
        body |= {"uid": self.uid} if self.uid else {}
        body |= {"framework": self.framework} if self.framework else {}
        response = self._send_json("POST", "runs/", body | ({"tags": self.tags} if self.tags else {}))
        run_data, self.created = parse_response(response), response.status == 201
        if not isinstance(run_data, dict) or not isinstance(run_data.get("id"), str):
            raise RetryLaterError("the response to opening a run has no id")
        self.uid, self.name = run_data["id"], str(run_data.get("name") or self.name)
        self.url, self.server_id = str(run_data.get("url") or ""), str(run_data.get("server") or "")

    @property
    def path(self) -> str:
        return f"runs/{quote(self.uid, safe='')}/"

    def _build_headers(self) -> dict[str, str]:
        """Returns headers from which a server that does not know the run can create it with the same id."""
        return build_run_headers({"project": self.project, "name": self.name, "run": {"resume": "allow"}})

    def upload(self, part: FilePart, progress: UploadProgress = lambda sent: None) -> bool:
        """Uploads a part. Returns True if it is new to the server, False if it was known.

        `progress` is called with the number of bytes as they arrive. Raises UploadRejectedError, RetryLaterError or
        ActionRequiredError, and OSError if the file can't be read.
        """
        response = self._upload_in_parts(part, progress) if part.body is None else self._put(part, part.body)
        receipt = parse_response(response)
        if not is_receipt(response, part.sha256, part.size):
            raise RetryLaterError(f"the response ({response.status}) is not a receipt for the sent bytes")
        self.warning = str(receipt.get("warning") or self.warning)
        if part.body is not None:
            progress(part.size)
        return response.status == 201

    def is_running(self) -> bool:
        """Whether a run of this name is in training now; False if the token must not read it.

        Raises RetryLaterError.
        """
        query = {"project": self.project, "name": self.name, "status": "running"}
        response = self.request("GET", "runs/", query=query)
        if response.is_from_server and response.status in (403, 404):
            return False
        return any(run["name"] == self.name for run in parse_response(response)["results"])

    def list_attempts(self) -> list[str] | None:
        """Returns the keys of the run's attempts, oldest first; None if the token must not read.

        Raises RetryLaterError.
        """
        response = self.request("GET", self.path)
        if response.is_from_server and response.status == 403:
            return None
        return [str(attempt["key"]) for attempt in parse_response(response)["attempts"]]

    def count_dumps(self) -> dict[str, int]:
        """Returns how many of the run's dumps are in each state.

        Raises RetryLaterError, or ActionRequiredError if the token must not read.
        """
        return dict(parse_response(self.request("GET", self.path))["dumps"])

    def summarize_source(self, source: str, attempt: str | None = None) -> dict[str, Any]:
        """Returns what became of the dumps whose source starts with `source`: `waiting`, `failed`, `rows`, `rejected`.

        Raises RetryLaterError, ActionRequiredError or UploadRejectedError.
        """
        query = {"source": source, "attempt": attempt}
        return dict(parse_response(self.request("GET", f"{self.path}ingest/", query=query)))

    def list_dumps(self, page: int) -> dict[str, Any]:
        """Returns a page of the run's dumps, newest first: `results` and `next`.

        Raises RetryLaterError or ActionRequiredError.
        """
        return dict(parse_response(self.request("GET", f"{self.path}dumps/", query={"page": page, "page_size": 500})))

    def has_part(self, part: FilePart) -> bool:
        """Whether the server has exactly this part. Raises RetryLaterError or ActionRequiredError."""
        response = self.request_run("HEAD", f"dumps/{part.sha256}/", query=part.query(), timeout=30.0)
        if response.is_from_server and response.status in (200, 404):
            return response.status == 200
        raise RetryLaterError(f"the server responded with {response.status}")

    def _put(self, part: FilePart, body: bytes | FileSlice, content_range: str = "") -> ServerResponse:
        headers = build_part_headers(content_range)
        return self.request_run("PUT", f"dumps/{part.sha256}/", query=part.query(), body=body, headers=headers)

    def _upload_in_parts(self, part: FilePart, progress: UploadProgress) -> ServerResponse:
        """Uploads a file in requests of MAX_PART_BYTES, from the offset that an earlier try reached."""
        response = self._put(part, b"", f"bytes */{part.size}")
        reported = 0
        with part.file.path.open("rb") as file:
            for _ in range(2 * (part.size // MAX_PART_BYTES) + 4):  # ends, whatever the server responds
                if not response.is_from_server or response.status != 202:
                    break
                received = parse_received_bytes(response, part.size)
                progress(max(0, received - reported))
                reported = max(reported, received)
                response = self._put(part, *read_next_part(response, file, part.size))
        if response.is_from_server and response.status == 202:
            raise RetryLaterError("the server does not complete the upload")
        progress(part.size - reported if response.is_success else 0)
        return response

    def heartbeat(self, step: int | None) -> None:
        """Sends a heartbeat. Raises RetryLaterError or ActionRequiredError."""
        self._post("heartbeat", {} if step is None else {"step": step})

    def finish_attempt(self) -> None:
        """Reports the end of the attempt. Raises RetryLaterError or ActionRequiredError."""
        self._post("finish", {"outcome": "finished"})

    def _post(self, resource: str, fields: Mapping[str, Any]) -> None:
        body, path = {"attempt": self.attempt, **fields}, f"{self.path}{resource}/"
        try:
            parse_response(self._send_json("POST", path, body, headers=self._build_headers()))
        except UploadRejectedError as error:
            raise RetryLaterError(str(error)) from error
