"""The request of an upload: its address, its query, its headers and its body."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from rest_framework import exceptions

from rolloutdeck.protocol import MAX_PART_BYTES, SHA256_PATTERN, UID_PATTERN
from rollouts.errors import InvalidInputError

Receive = Callable[[], Awaitable[Any]]

UPLOAD_PATH_PATTERN = re.compile(r"/api/v1/runs/([^/]+)/(?:dumps|artifacts/([^/]+)/files)/([^/]+)/?\Z")
CONTENT_RANGE_PATTERN = re.compile(r"bytes (?:(\d{1,18})-(\d{1,18})|\*)/(\d{1,18})\Z")
BATCH = 1 << 20
DRAINED = 2 * MAX_PART_BYTES


class ClientDisconnectedError(Exception):
    """The client went away in the middle of its body."""


class RequestBody:
    """The request's body, read once."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive) -> None:
        self.receive = receive
        names = {name.lower() for name, _ in scope["headers"]}
        self.more = bool({b"content-length", b"transfer-encoding"} & names)
        self.waits = b"expect" in names  # the client sends nothing before it is asked to

    async def next(self) -> bytes:
        """Some bytes; none at the end. Raises Vanished."""
        if not self.more:
            return b""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        self.more, self.waits = bool(message.get("more_body")), False
        return bytes(message.get("body", b""))

    async def batches(self) -> AsyncIterator[bytes]:
        """The body in pieces of about a megabyte. Raises Vanished."""
        waiting, size = [], 0
        while self.more:
            waiting.append(await self.next())
            size += len(waiting[-1])
            if size >= BATCH or not self.more:
                yield b"".join(waiting)
                waiting, size = [], 0

    async def drain(self) -> None:
        """Reads what is left of a body of ordinary size: many clients only look for an answer when all is sent.

        A server that closes the connection before would reset it, and the answer with it.
        """
        left = DRAINED
        while self.more and not self.waits and left > 0:
            left -= len(await self.next())


def parse_upload_path(path: str) -> tuple[str, str, str]:
    """The run's uid, the artifact's key (empty for a dump), the sha256 of the bytes. Raises BadInput."""
    found = UPLOAD_PATH_PATTERN.match(path)
    uid, key, sha256 = found.groups(default="") if found else ("", "", "")
    if not SHA256_PATTERN.match(sha256):
        raise InvalidInputError(
            "The address must end in the sha256 of the plain bytes: 64 lower-case hex digits.", "sha256"
        )
    if key and not SHA256_PATTERN.match(key):
        raise InvalidInputError("An artifact is named by a sha256: 64 lower-case hex digits.", "key")
    if not UID_PATTERN.match(uid):
        raise InvalidInputError("A run's id is 1 to 64 of A-Z a-z 0-9 . _ - and begins with a letter or digit.", "uid")
    return uid, key, sha256


def parse_query_string(scope: Mapping[str, Any]) -> dict[str, str]:
    try:
        raw = scope["query_string"].decode("ascii")
        return dict(parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=40))
    except ValueError as problem:
        raise InvalidInputError("The query is not percent-encoded UTF-8 with at most 40 parameters.") from problem


def parse_content_encoding(headers: Mapping[str, str]) -> bool:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise exceptions.UnsupportedMediaType(encoding, "Send the body plain or with Content-Encoding: gzip.")
    return encoding == "gzip"


def parse_content_length(headers: Mapping[str, str]) -> int | None:
    raw = headers.get("content-length")
    if raw is not None and not (raw.isascii() and raw.isdigit() and len(raw) < 19):
        raise InvalidInputError("Content-Length is no number.")
    return None if raw is None else int(raw)


def parse_content_range(headers: Mapping[str, str]) -> tuple[int, int, int] | None:
    """(first, last, total) of a Content-Range, (-1, -1, total) of the question `bytes */total`."""
    raw = headers.get("content-range")
    if raw is None:
        return None
    found = CONTENT_RANGE_PATTERN.match(raw.strip())
    if not found:
        raise InvalidInputError("Content-Range must be `bytes first-last/total` or `bytes */total`.")
    first, last, total = (-1 if group is None else int(group) for group in found.groups())
    if first >= 0 and not first <= last < total:
        raise InvalidInputError("Content-Range must have first <= last < total.")
    return first, last, total
