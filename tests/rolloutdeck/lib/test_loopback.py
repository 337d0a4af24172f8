"""Addresses of this machine."""

from __future__ import annotations

import pytest

from rolloutdeck.lib import is_loopback_host, is_loopback_url


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"])
def test_loopback_hosts_are_recognized(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize("host", ["", None, "0.0.0.0", "10.0.0.1", "localhost.example.com", "127.0.0.1.example.com"])
def test_other_hosts_are_not_loopback(host: str | None) -> None:
    assert not is_loopback_host(host)


def test_the_host_of_a_url_decides() -> None:
    assert is_loopback_url("http://[::1]:8460/deck") and is_loopback_url("http://localhost")
    assert not is_loopback_url("http://deck.example.com/localhost") and not is_loopback_url("http://[")
