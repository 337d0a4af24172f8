"""The request of an upload: its path, query, headers and body."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from rest_framework import exceptions

from rolloutdeck.protocol import MAX_PART_BYTES, SHA256_PATTERN, UID_PATTERN
from rollouts.errors import InvalidInputError

Receive = Callable[[], Awaitable[Any]]

UPLOAD_PATH_PATTERN = re.compile(r"/api/v1/runs/([^/]+)/(?:dumps|artifacts/([^/]+)/files)/([^/]+)/?\Z")
CONTENT_RANGE_PATTERN = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})\Z")
BATCH_BYTES = 1 << 20
MAX_DRAINED_BYTES = 2 * MAX_PART_BYTES


class ClientDisconnectedError(Exception):
    """The client disconnected before the end of its body."""


class RequestBody:
    """The request's body, read once."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self.receive = receive
        names = {name.lower() for name, _ in scope["headers"]}
        self.has_more = bool({b"content-length", b"transfer-encoding"} & names)
        self.client_waits = b"expect" in names  # the client sends nothing before the server asks for it

    async def read(self) -> bytes:
        """Some bytes; empty at the end. Raises ClientDisconnectedError."""
        if not self.has_more:
            return b""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        self.has_more, self.client_waits = bool(message.get("more_body")), False
        return bytes(message.get("body", b""))

    async def batches(self) -> AsyncIterator[bytes]:
        """The body in batches of about a megabyte. Raises ClientDisconnectedError."""
        chunks, size = [], 0
        while self.has_more:
            chunks.append(await self.read())
            size += len(chunks[-1])
            if size >= BATCH_BYTES or not self.has_more:
                yield b"".join(chunks)
                chunks, size = [], 0

    async def drain(self) -> None:
        """Reads the rest of a body of normal size: many clients read the response only after they have sent everything.

        If the server closed the connection earlier, it would be reset and the response would be lost.
        """
        left = MAX_DRAINED_BYTES
        while self.has_more and not self.client_waits and left > 0:
            left -= len(await self.read())


class ContentRange(NamedTuple):
    """In plain bytes. `first` and `last` are -1 for the question `bytes */total`."""

    first: int
    last: int
    total: int

    @property
    def is_question(self) -> bool:
        return self.first < 0

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def parse_upload_path(path: str) -> tuple[str, str, str]:
    """The run's uid, the artifact's key (empty for a dump), the sha256 of the bytes. Raises InvalidInputError."""
    match = UPLOAD_PATH_PATTERN.match(path)
    uid, key, sha256 = match.groups(default="") if match else ("", "", "")
    if not SHA256_PATTERN.match(sha256):
        message = "The URL must end in the sha256 of the plain bytes: 64 lower-case hex digits."
        raise InvalidInputError(message, "sha256")
    if key and not SHA256_PATTERN.match(key):
        raise InvalidInputError("An artifact is named by a sha256: 64 lower-case hex digits.", "key")
    if not UID_PATTERN.match(uid):
        raise InvalidInputError("A run's id is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit.", "uid")
    return uid, key, sha256


def parse_query_string(scope: Mapping[str, Any]) -> dict[str, str]:
    try:
        raw = scope["query_string"].decode("ascii")
        return dict(parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=40))
    except ValueError as error:
        raise InvalidInputError("The query is not percent-encoded UTF-8 with at most 40 parameters.") from error


def parse_content_encoding(headers: Mapping[str, str]) -> bool:
    """Whether the body is gzipped."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise exceptions.UnsupportedMediaType(encoding, "Send the body plain or with Content-Encoding: gzip.")
    return encoding == "gzip"


def parse_content_length(headers: Mapping[str, str]) -> int | None:
    raw = headers.get("content-length")
    if raw is not None and not (raw.isascii() and raw.isdigit() and len(raw) < 19):
        raise InvalidInputError("Content-Length is not a number.")
    return None if raw is None else int(raw)


def parse_content_range(headers: Mapping[str, str]) -> ContentRange | None:
    raw = headers.get("content-range")
    if raw is None:
        return None
    match = CONTENT_RANGE_PATTERN.match(raw.strip())
    if not match:
        raise InvalidInputError("Content-Range must be `bytes first-last/total` or `bytes */total`.")
    part = ContentRange(*(-1 if group is None else int(group) for group in match.groups()))
    if not part.is_question and not part.first <= part.last < part.total:
        raise InvalidInputError("Content-Range must have first <= last < total.")
    return part
