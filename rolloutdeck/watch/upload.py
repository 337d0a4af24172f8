"""Brings pieces of files to a run on the server, and judges its answers for a person who waits at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from rolloutdeck.client import classify_response
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import FileSlice, ServerClient, ServerResponse, ServerUnreachableError
from rolloutdeck.protocol import MAX_PART_BYTES, PROJECT_HEADER, RESUME_HEADER, RUN_HEADER
from rolloutdeck.watch.follower import FilePart

UploadProgress = Callable[[int], None]


class RetryLaterError(Exception):
    """The server does not answer, or asks to come again; the same call may succeed later."""


class ActionRequiredError(RetryLaterError):
    """The server answers, but a person must act first: a token, a project, a run in the bin."""


class UploadRejectedError(Exception):
    """The server will never take these bytes. `changed`: they are not those that were announced, so read them again."""

    def __init__(self, message: str, changed: bool = False) -> None:
        super().__init__(message)
        self.changed = changed


def parse_response(answer: ServerResponse) -> Any:
    """The JSON of a good answer. Raises UploadRejectedError, RetryLaterError or ActionRequiredError for any other."""
    if answer.is_success:
        return answer.json()
    outcome = classify_response(answer)
    if answer.is_from_server and answer.status == 409:
        raise UploadRejectedError(outcome.reason, changed=True)
    if outcome.state == "rejected":
        raise UploadRejectedError(outcome.reason)
    raise (ActionRequiredError if outcome.state == "action_required" else RetryLaterError)(outcome.reason)


@dataclass
class UploadTarget:
    """One run of one project. `uid` is the server's, once `open` has succeeded."""

    server: ServerClient
    project: str
    name: str
    attempt: str
    uid: str = ""
    framework: str = ""
    tags: list[str] = field(default_factory=list)
    url: str = ""
    created: bool = False

    def ask(self, method: str, path: str, **options: Any) -> ServerResponse:
        try:
            return self.server.request(method, path, **options)
        except ServerUnreachableError as error:
            raise RetryLaterError(f"the server does not answer: {error}") from error

    def ask_run(self, method: str, path: str, **options: Any) -> ServerResponse:
        """A request to an address below the run's. Raises RetryLaterError."""
        headers = {**self._about(), **options.pop("headers", {})}
        return self.ask(method, f"{self.path}{path}", headers=headers, **{"timeout": 120.0, **options})

    def open(self) -> None:
        """Finds or makes the run, which continues if the name is known. Raises UploadRejectedError, RetryLaterError,
        ActionRequiredError."""
        wanted = {"project": self.project, "name": self.name, "attempt": self.attempt, "resume": "allow"}
        wanted |= {"uid": self.uid} if self.uid else {}
        wanted |= {"framework": self.framework} if self.framework else {}
        try:
            answer = self.server.send_json("POST", "runs/", wanted | ({"tags": self.tags} if self.tags else {}))
        except ServerUnreachableError as error:
            raise RetryLaterError(f"the server does not answer: {error}") from error
        opened, self.created = parse_response(answer), answer.status == 201
        if not isinstance(opened, dict) or not isinstance(opened.get("id"), str):
            raise RetryLaterError("the answer to opening a run has no id")
        self.uid, self.name = opened["id"], str(opened.get("name") or self.name)
        self.url = str(opened.get("url") or "")

    @property
    def path(self) -> str:
        return f"runs/{quote(self.uid, safe='')}/"

    def _about(self) -> dict[str, str]:
        """Headers from which a server that lost the run makes it again under the same id."""
        named = {PROJECT_HEADER: self.project, RUN_HEADER: self.name, RESUME_HEADER: "allow"}
        return {header: quote(value, safe="") for header, value in named.items()}

    def push(self, piece: FilePart, progress: UploadProgress = lambda sent: None) -> bool:
        """True if it is new to the server, False if it was known. `progress` is told of bytes as they arrive.

        Raises UploadRejectedError, RetryLaterError, ActionRequiredError; OSError if the file can't be read.
        """
        if piece.body is None:
            answer = self._in_parts(piece, progress)
        else:
            answer = self._put(piece, piece.body)
        receipt = parse_response(answer)
        if not isinstance(receipt, dict) or (receipt.get("sha256"), receipt.get("bytes")) != (piece.sha256, piece.size):
            raise RetryLaterError(f"the answer ({answer.status}) is no receipt for what was sent")
        if piece.body is not None:
            progress(piece.size)
        return answer.status == 201

    def running(self) -> bool:
        """Whether a run of this name is being trained now, as far as the token may look. Raises RetryLaterError."""
        asked = {"project": self.project, "name": self.name, "status": "running"}
        answer = self.ask("GET", "runs/", query=asked)
        if answer.is_from_server and answer.status in (403, 404):
            return False
        return any(one["name"] == self.name for one in parse_response(answer)["results"])

    def attempts(self) -> list[str] | None:
        """The keys of the run's launches, oldest first; None where the token may not read. Raises RetryLaterError."""
        answer = self.ask("GET", self.path)
        if answer.is_from_server and answer.status == 403:
            return None
        found = parse_response(answer)
        return [str(one["key"]) for one in found["attempts"]]

    def counts(self) -> dict[str, int]:
        """How many of the run's dumps are in each state. Raises RetryLaterError, ActionRequiredError (the token may not
        read)."""
        return dict(parse_response(self.ask("GET", self.path))["dumps"])

    def dumps(self, page: int) -> dict[str, Any]:
        """A page of the run's dumps, newest first: `results` and `next`. Raises RetryLaterError,
        ActionRequiredError."""
        return dict(parse_response(self.ask("GET", f"{self.path}dumps/", query={"page": page, "page_size": 500})))

    def knows(self, piece: FilePart) -> bool:
        """Whether the server has exactly this piece. Raises RetryLaterError, ActionRequiredError."""
        answer = self.ask("HEAD", f"{self.path}dumps/{piece.sha256}/", query=piece.query(), headers=self._about())
        if answer.is_from_server and answer.status in (200, 404):
            return answer.status == 200
        raise RetryLaterError(f"the server answered {answer.status}")

    def _put(self, piece: FilePart, body: bytes | FileSlice, span: str = "") -> ServerResponse:
        headers: dict[str, str] = {**self._about(), "Content-Type": "application/octet-stream"}
        if span:
            headers["Content-Range"] = span
        path = f"{self.path}dumps/{piece.sha256}/"
        return self.ask("PUT", path, query=piece.query(), body=body, headers=headers, timeout=120.0)

    def _in_parts(self, piece: FilePart, progress: UploadProgress) -> ServerResponse:
        """Asks how far an earlier try came and goes on from there, part by part."""
        answer = self._put(piece, b"", f"bytes */{piece.size}")
        reported = 0
        with piece.found.path.open("rb") as file:
            for _ in range(2 * (piece.size // MAX_PART_BYTES) + 4):  # ends, whatever the server says
                if not answer.is_from_server or answer.status != 202:
                    break
                at = _received(answer.json(), piece.size)
                progress(max(0, at - reported))
                reported = max(reported, at)
                length = min(MAX_PART_BYTES, piece.size - at)
                answer = self._put(piece, FileSlice(file, at, length), f"bytes {at}-{at + length - 1}/{piece.size}")
        if answer.is_from_server and answer.status == 202:
            raise RetryLaterError("the server does not put the parts together")
        progress(piece.size - reported if answer.is_success else 0)
        return answer

    def heartbeat(self, step: int | None) -> None:
        """Raises RetryLaterError, ActionRequiredError."""
        self._tell("heartbeat", {} if step is None else {"step": step})

    def finish(self) -> None:
        """The launch has ended. Raises RetryLaterError, ActionRequiredError."""
        self._tell("finish", {"outcome": "finished"})

    def _tell(self, verb: str, about: Mapping[str, Any]) -> None:
        body = {"attempt": self.attempt, **about}
        try:
            parse_response(self.server.send_json("POST", f"{self.path}{verb}/", body, headers=self._about()))
        except ServerUnreachableError as error:
            raise RetryLaterError(f"the server does not answer: {error}") from error
        except UploadRejectedError as error:
            raise RetryLaterError(str(error)) from error


def _received(told: Any, total: int) -> int:
    received = told.get("received") if isinstance(told, dict) else None
    return received if isinstance(received, int) and 0 <= received < total else 0


def build_usage_error(error: Exception) -> UsageError:
    """The same as one sentence that ends a command."""
    sentence = str(error)
    return UsageError(sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith((".", "!", "?")) else "."))
