"""One request to a Rolloutdeck server. Standard library only.

Proxies named in the environment are not used and redirects are not followed: an answer that is not from a
Rolloutdeck server (a login page, a proxy's own error) must be seen as that.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - sockets look it up on first use; a fork in that moment spoils it for the child
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlencode, urlsplit

from rolloutdeck.protocol import (
    PROJECT_HEADER,
    RESUME_HEADER,
    RUN_HEADER,
    SERVER_HEADER,
    WIRE_HEADER,
    WIRE_VERSION,
    SpoolHeader,
)

API = "api/v1/"
MAX_ANSWER_BYTES = 64 << 20
CHUNK = 1 << 18


class ServerUnreachableError(Exception):
    """No answer: the address is wrong, nothing listens, the network or TLS failed, or the time was up."""


class Stream(Protocol):
    """A body that is read in pieces; with `length` where it is known beforehand."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """What came back. `headers` have lower-case names; `is_ours` says that a Rolloutdeck server wrote it."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_ours: bool

    @property
    def ok(self) -> bool:
        return self.is_ours and 200 <= self.status < 300

    def json(self) -> Any:
        """The body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def error(self) -> str:
        """One sentence for people: the server's own message where there is one."""
        if not self.is_ours:
            return f"the answer ({self.status}) is not from a Rolloutdeck server: {self._start()}"
        found = self.json()
        error = found.get("error") if isinstance(found, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return str(message) if message else f"the server answered {self.status}: {self._start()}"

    def _start(self) -> str:
        return " ".join(self.body[:400].decode("utf-8", "replace").split())[:160] or "nothing"


class StreamedResponse:
    """An answer whose body is read in pieces; only that of an error is read at once, see `error`."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.is_ours = SERVER_HEADER.lower() in self.headers

    def read(self, size: int) -> bytes:
        """At most `size` bytes, as soon as some are there; b"" at the end. Raises ServerUnreachableError."""
        try:
            return self._response.read1(size)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerUnreachableError(f"the answer broke off: {_reason(error)}") from error

    @property
    def error(self) -> str:
        """One sentence for people, as `ServerResponse.error`. Raises ServerUnreachableError."""
        body = b"" if self.is_ours and self.status < 300 else self.read(CHUNK)
        return ServerResponse(self.status, self.headers, body, self.is_ours).error


class FileSlice:
    """`length` bytes of an open file from `start` on, as a body; may be read by one request at a time."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self.file, self.length, self.left = file, length, length
        file.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        wanted = self.left if size < 0 else min(size, self.left)
        piece = self.file.read(wanted)
        self.left -= len(piece)
        return piece


class ServerClient:
    """A server's address, token and certificates. One connection per request, so threads may share it."""

    def __init__(self, url: str, token: str = "", ca_bundle: str = "") -> None:
        self.url, self.token, self.ca_bundle = url, token, ca_bundle

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | Stream | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> ServerResponse:
        """Sends one request and reads the whole answer, whatever its status.

        `path` is below `/api/v1/`, or below the server's address when it starts with "/". A stream needs an
        attribute `length` (bytes). `timeout` is in seconds, for each wait on the network; the answer's body gets
        ten times that in all. Query values that are None are left out. Raises ServerUnreachableError and nothing else.
        """
        try:
            return self._request(method, path, query, body, headers, timeout)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise ServerUnreachableError(f"{self.url or 'No server'}: {_reason(error)}") from error

    def send_json(self, method: str, path: str, data: Any, **options: Any) -> ServerResponse:
        """`request` with `data` as its JSON body."""
        headers = {**options.pop("headers", {}), "Content-Type": "application/json"}
        return self.request(method, path, body=json.dumps(data).encode(), headers=headers, **options)

    @contextlib.contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> Iterator[StreamedResponse]:
        """GETs `path` and hands over the answer before its body is read, for bodies that do not fit into memory.

        `timeout` is in seconds, for each wait on the network. Raises ServerUnreachableError and nothing else of its
        own.
        """
        try:
            connection, prefix = self._connection(timeout)
            target = prefix + (path if path.startswith("/") else f"/{API}{path}")
            connection.request("GET", target, headers=self._headers(None, headers))
            answer = StreamedResponse(connection.getresponse())
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise ServerUnreachableError(f"{self.url or 'No server'}: {_reason(error)}") from error
        try:
            yield answer
        finally:
            connection.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: bytes | Stream | None,
        headers: Mapping[str, str] | None,
        timeout: float,
    ) -> ServerResponse:
        connection, prefix = self._connection(timeout)
        target = prefix + (path if path.startswith("/") else f"/{API}{path}")
        if query:
            target += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        try:
            connection.connect()  # a reset before there is a connection has no answer behind it
            # A server may answer (413, 401) and close before it has read the body: its answer is still there.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, target, body=_pieces(body), headers=self._headers(body, headers))
            return _answer(connection.getresponse(), time.monotonic() + 10 * timeout)
        finally:
            connection.close()

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, str]:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http:// or https:// address" if self.url else "ROLLOUTDECK_URL is not set")
        prefix = parts.path.rstrip("/")
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout), prefix
        import ssl

        context = ssl.create_default_context(cafile=self.ca_bundle or None)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context), prefix

    def _headers(self, body: bytes | Stream | None, headers: Mapping[str, str] | None) -> dict[str, str]:
        sent = {WIRE_HEADER: str(WIRE_VERSION), "Accept": "application/json"}
        if self.token:
            if not (self.token.isascii() and self.token.isprintable()):
                raise ValueError("the token has characters that no token has")  # and must not show in a log
            sent["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, bytes):
            sent["Content-Length"] = str(body.length)  # type: ignore[attr-defined]
        return {**sent, **(headers or {})}


class RunClient:
    """Requests to the addresses of one run, from which a server that never saw the run can create it."""

    def __init__(self, server: ServerClient, header: SpoolHeader, timeout: float = 30.0) -> None:
        self.server, self.timeout = server, timeout
        self.path = f"runs/{quote(header['uid'], safe='')}/"
        self.headers = build_run_headers(header)

    def request(self, method: str, path: str, **options: Any) -> ServerResponse:
        """`ServerClient.request` with `path` below the address of the run."""
        headers = {**self.headers, **options.pop("headers", {})}
        return self.server.request(method, self.path + path, headers=headers, **{"timeout": self.timeout, **options})

    def send_json(self, method: str, path: str, data: Any) -> ServerResponse:
        """`ServerClient.send_json` with `path` below the address of the run."""
        return self.server.send_json(method, self.path + path, data, headers=self.headers, timeout=self.timeout)


def build_run_headers(header: SpoolHeader) -> dict[str, str]:
    """Request headers from which a server that never saw the run can create it."""
    about = {PROJECT_HEADER: quote(header["project"], safe=""), RUN_HEADER: quote(header["name"], safe="")}
    if resume := header.get("run", {}).get("resume"):
        about[RESUME_HEADER] = quote(str(resume), safe="")
    return about


def _pieces(body: bytes | Stream | None) -> Any:
    if body is None or isinstance(body, bytes):
        return body
    return iter(lambda: body.read(CHUNK), b"")


def _answer(response: http.client.HTTPResponse, deadline: float) -> ServerResponse:
    pieces, size = [], 0
    while piece := response.read1(CHUNK):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer takes too long")
    if response.length:  # read1 ends quietly where the connection was cut
        raise http.client.IncompleteRead(b"".join(pieces), response.length)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return ServerResponse(response.status, headers, b"".join(pieces), SERVER_HEADER.lower() in headers)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return str(error) if "long" in str(error) else "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
