"""HTTP client for a Rolloutdeck server. Standard library only.

It ignores proxies of the environment and does not follow redirects, so that a response of another program (a login
page, a proxy error) is recognized as one.
"""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401 - sockets import it on first use; a fork during that import breaks it in the child
import http.client
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlencode, urlsplit

from rolloutdeck import protocol
from rolloutdeck.lib.connection import EncryptedConnection, PlainConnection
from rolloutdeck.lib.log import logger
from rolloutdeck.protocol import SpoolHeader

API_PATH = "api/v1/"
MAX_RESPONSE_BYTES = 64 << 20
CHUNK_BYTES = 1 << 18
_newer_servers: set[str] = set()  # that were warned of


class ServerUnreachableError(Exception):
    """No response: wrong address, no listener, a network or TLS failure, or a timeout."""


class Stream(Protocol):
    """A request body that is read in chunks. `length` is its size in bytes."""

    def read(self, size: int = -1, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """A response. `headers` have lower-case names; `is_from_server` is true if a Rolloutdeck server wrote it."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_from_server: bool

    @property
    def is_success(self) -> bool:
        return self.is_from_server and 200 <= self.status < 300

    def json(self) -> Any:
        """Returns the body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def retry_after(self) -> float:
        """The seconds of Retry-After; 0 if it is absent or a date."""
        seconds = self.headers.get("retry-after", "")
        return float(seconds) if seconds.isdecimal() else 0.0

    @property
    def error_message(self) -> str:
        """One sentence for the user: the server's message if there is one."""
        if not self.is_from_server:
            return f"the response ({self.status}) is not from a Rolloutdeck server: {self._format_body_start()}"
        data = self.json()
        error = data.get("error") if isinstance(data, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return str(message) if message else f"the server responded with {self.status}: {self._format_body_start()}"

    def _format_body_start(self) -> str:
        return " ".join(self.body[:400].decode("utf-8", "replace").split())[:160] or "nothing"


class StreamedResponse:
    """A response whose body is read in chunks. The body of an error is read by `error_message`."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.is_from_server = protocol.SERVER_HEADER.lower() in self.headers

    def read(self, size: int) -> bytes:
        """Returns up to `size` bytes, as soon as some are available; b"" at the end. Raises ServerUnreachableError."""
        try:
            return self._response.read1(size)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerUnreachableError(f"the connection was interrupted: {_describe_error(error)}") from error

    @property
    def error_message(self) -> str:
        """Like `ServerResponse.error_message`. Raises ServerUnreachableError."""
        body = b"" if self.is_from_server and self.status < 300 else self.read(CHUNK_BYTES)
        return ServerResponse(self.status, self.headers, body, self.is_from_server).error_message


class FileSlice:
    """A request body: `length` bytes of an open file from `start` on. One request at a time may read it."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self.file, self.length, self.remaining = file, length, length
        file.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        count = self.remaining if size < 0 else min(size, self.remaining)
        chunk = self.file.read(count)
        self.remaining -= len(chunk)
        return chunk


class ServerClient:
    """Address, token and CA bundle of a server. Each request opens its own connection, so threads may share it."""

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
        """Sends one request and returns the full response, also for an error status.

        `path` is relative to `/api/v1/`, or to the server's address if it starts with "/". A stream body needs the
        attribute `length` (bytes). `timeout` is in seconds, for the lookup of the server's name and for each wait on
        the network; the response body may take ten times as long. Query values that are None are omitted. Raises
        ServerUnreachableError and nothing else.
        """
        with self._report_unreachable():
            connection, target = self._open_connection(path, timeout)
            if query:
                target += "?" + urlencode({name: value for name, value in query.items() if value is not None})
            all_headers = self._build_headers(body, headers)
            chunks = body if body is None or isinstance(body, bytes) else iter(partial(body.read, CHUNK_BYTES), b"")
            try:
                connection.connect()  # outside of suppress: if connecting fails there is no response to read
                # A server may respond (413, 401) and close before it has read the body. The response can still be read.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, target, body=chunks, headers=all_headers)
                response = _read_response(connection.getresponse(), time.monotonic() + 10 * timeout)
            finally:
                connection.close()
        self._warn_of_newer_server(response)
        return response

    def _warn_of_newer_server(self, response: ServerResponse) -> None:
        """Logs once per server that it speaks a newer version than this client. It accepts older ones."""
        version = response.headers.get(protocol.SERVER_HEADER.lower(), "")
        if version.isdecimal() and int(version[:9]) > protocol.WIRE_VERSION and self.url not in _newer_servers:
            _newer_servers.add(self.url)
            logger.warning(
                "The server %s speaks version %s of the protocol, this client version %d. What is new in it is not "
                "available here. Upgrade the client: pip install --upgrade rolloutdeck.",
                self.url, version[:9], protocol.WIRE_VERSION,
            )  # fmt: skip

    def send_json(self, method: str, path: str, data: Any, **options: Any) -> ServerResponse:
        headers = {**options.pop("headers", {}), "Content-Type": "application/json"}
        return self.request(method, path, body=encode_json(data), headers=headers, **options)

    @contextlib.contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, timeout: float = 30.0
    ) -> Iterator[StreamedResponse]:
        """Sends a GET request and yields the response before its body is read. Raises ServerUnreachableError."""
        with self._report_unreachable():
            connection, target = self._open_connection(path, timeout)
            connection.request("GET", target, headers=self._build_headers(None, headers))
            response = StreamedResponse(connection.getresponse())
        try:
            yield response
        finally:
            connection.close()

    @contextlib.contextmanager
    def _report_unreachable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise ServerUnreachableError(f"{self.url or 'No server'}: {_describe_error(error)}") from error

    def _open_connection(self, path: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
        """Returns a connection and the path of the request."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an http:// or https:// address" if self.url else "ROLLOUTDECK_URL is not set")
        target = parts.path.rstrip("/") + (path if path.startswith("/") else f"/{API_PATH}{path}")
        if parts.scheme == "http":
            port = parts.port or PlainConnection.default_port  # without one, an IPv6 address would be split at its ":"
            return PlainConnection(parts.hostname, port, timeout=timeout), target
        import ssl

        context = ssl.create_default_context(cafile=self.ca_bundle or None)
        port = parts.port or EncryptedConnection.default_port
        return EncryptedConnection(parts.hostname, port, timeout=timeout, context=context), target

    def _build_headers(self, body: bytes | Stream | None, headers: Mapping[str, str] | None) -> dict[str, str]:
        result = {protocol.WIRE_HEADER: str(protocol.WIRE_VERSION), "Accept": "application/json"}
        if self.token:
            if not (self.token.isascii() and self.token.isprintable()):
                raise ValueError("the token has invalid characters")  # without the token: messages are logged
            result["Authorization"] = f"Bearer {self.token}"
        if body is not None and not isinstance(body, bytes):
            result["Content-Length"] = str(body.length)  # type: ignore[attr-defined]
        return {**result, **(headers or {})}


class RunClient:
    """Requests to the URLs of one run. Their headers let a server that does not know the run create it."""

    def __init__(self, server: ServerClient, header: SpoolHeader, timeout: float = 30.0) -> None:
        self.server, self.timeout = server, timeout
        self.path = f"runs/{quote(header['uid'], safe='')}/"
        self.headers = build_run_headers(header)

    def request(self, method: str, path: str, **options: Any) -> ServerResponse:
        """Calls `ServerClient.request` with `path` relative to the URL of the run."""
        headers = {**self.headers, **options.pop("headers", {})}
        return self.server.request(method, self.path + path, headers=headers, **{"timeout": self.timeout, **options})

    def send_json(self, method: str, path: str, data: Any) -> ServerResponse:
        return self.server.send_json(method, self.path + path, data, headers=self.headers, timeout=self.timeout)


def encode_json(data: Any) -> bytes:
    r"""Returns JSON in UTF-8. Unpaired surrogates, which UTF-8 has no bytes for, are written as `\ud800`."""
    return json.dumps(data, ensure_ascii=False).encode("utf-8", "backslashreplace")


def build_run_headers(header: SpoolHeader) -> dict[str, str]:
    """Returns request headers from which a server that does not know the run can create it."""
    values = {protocol.PROJECT_HEADER: header["project"], protocol.RUN_HEADER: header["name"]}
    if resume := header.get("run", {}).get("resume"):
        values[protocol.RESUME_HEADER] = str(resume)
    return {name: quote(value, safe="") for name, value in values.items()}


def _read_response(response: http.client.HTTPResponse, deadline: float) -> ServerResponse:
    chunks, size = [], 0
    while chunk := response.read1(CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response is larger than {MAX_RESPONSE_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise TimeoutError("the response takes too long")
    if response.length:  # read1 does not raise if the connection was cut
        raise http.client.IncompleteRead(b"".join(chunks), response.length)
    headers = {name.lower(): value for name, value in response.getheaders()}
    return ServerResponse(response.status, headers, b"".join(chunks), protocol.SERVER_HEADER.lower() in headers)


def _describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return str(error) if "long" in str(error) else "the server did not respond in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
