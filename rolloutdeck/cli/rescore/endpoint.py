"""Calls of an OpenAI-compatible endpoint: `POST /chat/completions`, with pauses when it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from rolloutdeck.errors import UsageError

REFUSED_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504, 529)
FATAL_STATUSES = (401, 402, 403, 404, 405)
MAX_PAUSE_SECONDS = 60.0
MAX_ANSWER_BYTES = 16 << 20
MAX_MESSAGE_CHARS = 300
SENDABLE_TEXT = re.compile(r"[!-~]*")  # what an HTTP client sends in an address and a header: ASCII without spaces


class RefusedError(Exception):
    """The endpoint did not take the call. It may be sent again."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class UnreachableError(RefusedError):
    """There is no connection to the address, so nothing was sent."""


class LostAnswerError(Exception):
    """The call was sent, and no complete answer came. Whether the model has answered is not known."""


class CallFailedError(Exception):
    """The endpoint says that this call can never succeed, for example because it is too long."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the key to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


class ReportingConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        with report_unreachable(self):
            super().connect()


class ReportingTlsConnection(http.client.HTTPSConnection):
    def connect(self) -> None:
        with report_unreachable(self):
            super().connect()


class ReportingHandler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(ReportingConnection, request)


class ReportingTlsHandler(urllib.request.HTTPSHandler):
    def __init__(self) -> None:
        self.context = ssl.create_default_context()  # one for all calls: to read the certificates takes long
        self.context.set_alpn_protocols(["http/1.1"])
        super().__init__(context=self.context)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(ReportingTlsConnection, request, context=self.context)


@contextlib.contextmanager
def report_unreachable(connection: http.client.HTTPConnection) -> Iterator[None]:
    """Raises UnreachableError, or UsageError if the certificate is not trusted, which no later call changes. After the
    connection, the same errors mean that the request may have arrived."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        message = f"The certificate of {connection.host}:{connection.port} is not trusted: {error}."
        raise UsageError(f"{message} If it is your own, set SSL_CERT_FILE to its CA bundle.") from error
    except (OSError, UnicodeError) as error:  # a host name that cannot be encoded is a UnicodeError
        reason = str(error) or type(error).__name__
        raise UnreachableError(f"{connection.host}:{connection.port}: {reason}") from error


@dataclass
class Endpoint:
    url: str
    model: str
    key: str
    timeout: float
    tries: int
    body: dict[str, Any]
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if not is_address(self.url):
            raise UsageError(f"--endpoint {self.url} is not an http:// or https:// address.")
        if not SENDABLE_TEXT.fullmatch(self.url):
            raise UsageError(f"--endpoint {self.url!r} has a space or a character that is not ASCII.")
        self._opener = urllib.request.build_opener(NoRedirects, ReportingHandler, ReportingTlsHandler)

    def ask(
        self, messages: list[dict[str, str]], before: Callable[[], None], refused: Callable[[], None]
    ) -> dict[str, Any]:
        """Returns the answer as `read_answer` does. `before` is called before each try, `refused` after one that was
        not taken.

        Raises LostAnswerError, CallFailedError, RefusedError after the last try or when calls are stopped, and
        UsageError if no call can work.
        """
        body = {"model": self.model, "messages": messages, "temperature": 0, **self.body}
        data = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
        for number in range(self.tries):
            before()
            try:
                return self._send(data)
            except RefusedError as error:
                refused()
                if number + 1 == self.tries or self.stopped.is_set():
                    raise
                pause = min(MAX_PAUSE_SECONDS, 2.0**number) if error.pause is None else error.pause
                if self.stopped.wait(pause * random.uniform(0.75, 1.25)):
                    raise
        raise AssertionError("the last try raises")

    def _send(self, data: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        address = f"{self.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(address, data, headers, method="POST")
        try:
            with self._opener.open(request, timeout=self.timeout) as response:
                return read_answer(read_body(response, time.monotonic() + self.timeout))
        except urllib.error.HTTPError as error:
            raise build_status_error(error) from error
        except urllib.error.URLError as error:
            raise LostAnswerError(f"no answer: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise LostAnswerError(f"no answer: {error or type(error).__name__}") from error


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number, or the host no IP address
        return False


def read_body(response: Any, deadline: float) -> bytes:
    chunks: list[bytes] = []
    while chunk := response.read1(1 << 16):
        chunks.append(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError("it takes longer than the time limit")
        if sum(map(len, chunks)) > MAX_ANSWER_BYTES:
            raise LostAnswerError("the answer is too large")
    if response.length:
        raise http.client.IncompleteRead(b"".join(chunks), response.length)
    return b"".join(chunks)


def read_answer(body: bytes) -> dict[str, Any]:
    """Returns the `text` of the first choice, and `is_cut` if the model reached its limit of tokens. Raises
    CallFailedError if there is no text."""
    try:
        choice = json.loads(body)["choices"][0]
        text, is_cut = choice["message"].get("content"), choice.get("finish_reason") == "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        text, is_cut = None, False
    if isinstance(text, str) or is_cut:  # a model that was cut off while it thought has no text
        return {"text": text if isinstance(text, str) else "", **({"is_cut": True} if is_cut else {})}
    raise CallFailedError(f"the endpoint's answer has no text: {shorten(body)}")


def build_status_error(error: urllib.error.HTTPError) -> Exception:
    try:
        text = shorten(error.read(1 << 16))
    except (OSError, http.client.HTTPException):
        text = ""
    message = f"the endpoint answered {error.code}: {text}"
    if error.code in FATAL_STATUSES or 300 <= error.code < 400:
        return UsageError(f"No call can work: {message}.")
    if error.code in REFUSED_STATUSES:
        return RefusedError(message, parse_pause(error.headers.get("Retry-After")))
    return CallFailedError(message)


def parse_pause(text: str | None) -> float | None:
    """The header may also have a date, which is ignored."""
    try:
        return max(0.0, min(MAX_PAUSE_SECONDS, float(text or "")))
    except ValueError:
        return None


def shorten(body: bytes) -> str:
    return " ".join(body.decode("utf-8", "replace").split())[:MAX_MESSAGE_CHARS]
