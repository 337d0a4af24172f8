"""Looking up the server's name, and connecting to the addresses that it has."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from rolloutdeck.lib import ServerClient, ServerUnreachableError
from tests.rolloutdeck.support.fake_server import Receiver


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The resolver does not answer until the test ends."""
    end = threading.Event()
    waiting_threads: list[threading.Thread] = []

    def wait(*_args: Any, **_options: Any) -> Any:
        waiting_threads.append(threading.current_thread())
        end.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    yield
    end.set()
    for thread in waiting_threads:
        if thread is not threading.current_thread():
            thread.join(30)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_lookup_without_an_answer_ends_after_the_timeout(hanging_resolver: None, scheme: str) -> None:
    started = time.monotonic()
    with pytest.raises(ServerUnreachableError, match=r"looking up the name deck\.example takes too long"):
        ServerClient(f"{scheme}://deck.example").request("GET", "runs/", timeout=0.2)
    assert time.monotonic() - started < 15


def test_a_download_does_not_wait_longer_for_the_lookup(hanging_resolver: None) -> None:
    with (
        pytest.raises(ServerUnreachableError, match="takes too long"),
        ServerClient("http://deck.example").stream("runs/", timeout=0.2),
    ):
        pass


def test_the_next_address_of_a_name_is_tried(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    url = urlsplit(connected_receiver.url)
    addresses = [(socket.AF_INET, address) for address in ("127.0.0.99", "127.0.0.1")]
    found = [(family, socket.SOCK_STREAM, 6, "", (address, url.port)) for family, address in addresses]
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *args, **kw: found if host == "deck.example" else real(host, *args, **kw)
    )
    assert ServerClient(f"http://deck.example:{url.port}{url.path}").send_json("POST", "runs/", {}).is_success


def test_a_name_is_looked_up_if_no_thread_can_start(
    connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    url = urlsplit(connected_receiver.url)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ServerUnreachableError, match=r"Name or service not known|name resolution|No address"):
            ServerClient("http://name.invalid").request("GET", "runs/")
    assert ServerClient(f"http://localhost:{url.port}{url.path}").send_json("POST", "runs/", {}).is_success


def test_the_error_for_an_invalid_name_is_one_sentence() -> None:
    with pytest.raises(ServerUnreachableError) as failure:
        ServerClient("http://" + "a" * 70 + ".example").request("GET", "runs/")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_an_ipv6_address_needs_no_port(monkeypatch: pytest.MonkeyPatch, scheme: str, port: int) -> None:
    found = []

    def refuse(address: tuple[str, int], timeout: float) -> None:
        found.append(address)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(ServerUnreachableError, match="Connection refused"):
        ServerClient(f"{scheme}://[::1]").request("GET", "runs/")
    assert found == [("::1", port)]
