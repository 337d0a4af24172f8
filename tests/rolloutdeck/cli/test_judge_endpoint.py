"""The connection of a judge to its endpoint: what was sent, and what was not."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from argparse import Namespace
from collections.abc import Iterator

import pytest

from rolloutdeck.cli.rescore.endpoint import Endpoint, LostAnswerError, RefusedError, UnreachableError
from rolloutdeck.cli.rescore.judge import build_endpoint
from rolloutdeck.errors import UsageError


def ask(url: str, timeout: float = 0.3, tries: int = 1) -> list[str]:
    """Returns what the journal of the call would have. Raises what `Endpoint.ask` does."""
    events: list[str] = []
    endpoint = Endpoint(url, "tiny-judge", "", timeout, tries, {})
    try:
        endpoint.ask([], lambda: events.append("sent"), lambda: events.append("refused"))
    except UnreachableError:
        assert events == ["sent", "refused"]
        raise
    except LostAnswerError:
        assert events == ["sent"]
        raise
    return events


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EHOSTUNREACH, "No route to host"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError("timed out"),
        socket.gaierror("Name or service not known"),
        ssl.SSLError("wrong version number"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nothing_was_sent_if_there_is_no_connection(
    monkeypatch: pytest.MonkeyPatch, error: OSError, scheme: str
) -> None:
    def connect(*args: object, **options: object) -> socket.socket:
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UnreachableError, match=str(error).rpartition("] ")[2]):
        ask(f"{scheme}://judge.example/v1")


def test_a_certificate_that_is_not_trusted_ends_the_command_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*args: object, **options: object) -> socket.socket:
        raise ssl.SSLCertVerificationError(1, "certificate verify failed: self-signed certificate")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(UsageError, match=r"judge\.example:443 is not trusted: .*self-signed certificate"):
        ask("https://judge.example/v1", tries=3)


def test_the_trusted_certificates_are_read_once(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    address, load, loads = f"https://127.0.0.1:{listener.getsockname()[1]}/v1", ssl.SSLContext.load_default_certs, []

    def count(context: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        loads.append(purpose)
        load(context, purpose)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", count)
    endpoint = Endpoint(address, "tiny-judge", "", 0.2, 1, {})
    for _call in range(2):
        with pytest.raises(UnreachableError):
            endpoint.ask([], lambda: None, lambda: None)
    assert len(loads) == 1


def test_a_handshake_that_fails_or_hangs_sent_nothing(listener: socket.socket) -> None:
    with pytest.raises(UnreachableError, match="timed out"):
        ask(f"https://127.0.0.1:{listener.getsockname()[1]}/v1")


def test_a_call_without_an_answer_may_have_arrived(listener: socket.socket) -> None:
    with pytest.raises(LostAnswerError, match="no answer: timed out"):
        ask(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")


@pytest.mark.parametrize(
    "url",
    [
        "http://judge:abc/v1",
        "http:///v1",
        "https://[::1/v1",
        "ftp://judge/v1",
        "http://judge/v1 ",
        "http://judge/ä/v1",
        "http://judge\n/v1",
    ],
)
def test_an_invalid_address_is_refused_before_the_first_call(url: str) -> None:
    with pytest.raises(UsageError, match="--endpoint"):
        Endpoint(url, "tiny-judge", "", 1.0, 1, {})


@pytest.mark.parametrize("key", ["s3cret\ns3cret", "s3cret s3cret", "s3cret–", "s3cret\u200b"])
def test_a_key_that_can_t_be_sent_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("JUDGE_KEY", key)
    with pytest.raises(UsageError, match="The key in JUDGE_KEY has a space") as refused:
        build_endpoint(Namespace(body="", max_tokens=1, key_env="JUDGE_KEY"))
    assert "s3cret" not in str(refused.value)


def test_a_call_that_waits_for_its_next_try_is_not_sent_after_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedWhileWaiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    def refuse(endpoint: Endpoint, data: bytes) -> None:
        sent.append(data)
        raise RefusedError("the endpoint answered 429")

    sent: list[bytes] = []
    monkeypatch.setattr(Endpoint, "_send", refuse)
    endpoint = Endpoint("http://judge/v1", "tiny-judge", "", 1.0, 6, {}, StoppedWhileWaiting())
    with pytest.raises(RefusedError):
        endpoint.ask([], lambda: None, lambda: None)
    assert len(sent) == 1


def test_a_proxy_of_the_environment_is_used(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(LostAnswerError, match="no answer: timed out"):
        ask("http://judge.example/v1")
