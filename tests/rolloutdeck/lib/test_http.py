"""Requests to the server: errors that a user can read, the token, and slices of files."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rolloutdeck.client.run import Run
from rolloutdeck.lib.http import FileSlice, ServerClient, ServerUnreachableError
from tests.rolloutdeck.support.fake_server import Receiver

Start = Callable[..., Run]


@pytest.mark.parametrize("url", ["", "ftp://deck", "http://", "http://[::1", "http://127.0.0.1:1", "http://h:99999999"])
def test_the_error_for_an_unusable_address_is_one_sentence(url: str) -> None:
    with pytest.raises(ServerUnreachableError) as failure:
        ServerClient(url).request("GET", "runs/")
    assert "\n" not in str(failure.value)


def test_a_connection_that_is_reset_is_an_error_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(*given: object, **named: object) -> None:
        raise ConnectionResetError("the peer reset it")

    monkeypatch.setattr(socket, "create_connection", reset)
    with pytest.raises(ServerUnreachableError, match="the peer reset it"):
        ServerClient("http://127.0.0.1:9").request("POST", "runs/", body=b"{}")


def test_a_token_that_cannot_be_sent_is_not_shown(connected_receiver: Receiver) -> None:
    with pytest.raises(ServerUnreachableError) as failure:
        ServerClient(connected_receiver.url, "sec\nret").request("GET", "runs/")
    assert "ret" not in str(failure.value)


def test_a_proxy_of_the_environment_is_not_used(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ServerClient(connected_receiver.url).send_json("POST", "runs/", {}).is_success


def test_a_slice_is_read_from_its_start_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    with (tmp_path / "file").open("rb") as file:
        piece = FileSlice(file, 2, 5)
        assert [piece.read(3), piece.read(3), piece.read()] == [b"234", b"56", b""]
