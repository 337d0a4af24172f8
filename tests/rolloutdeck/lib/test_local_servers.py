"""Several servers of one user: which one commands use, and what they print."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolloutdeck.cli.common.options import connect
from rolloutdeck.lib import (
    Settings,
    list_running_servers,
    load_local_server,
    local_servers,
    record_local_server,
    remove_local_server,
)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("ROLLOUTDECK_URL", "ROLLOUTDECK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """Two ports on which something answers."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield [server.getsockname()[1] for server in listening]
    for server in listening:
        server.close()


def record_server(port: int, pid: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    monkeypatch.setattr(os, "getpid", lambda: pid)
    return record_local_server(f"http://127.0.0.1:{port}", f"token-{port}", Path(f"/data/{port}"))


def test_the_default_is_the_server_started_last_until_it_stops(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    assert record_server(ports[0], 101, monkeypatch) == []
    connect(Namespace(url="", token=""))
    assert capsys.readouterr().err == ""
    assert [server["url"] for server in record_server(ports[1], 102, monkeypatch)] == [first]
    settings, server = connect(Namespace(url="", token=""))
    assert (server.url, settings.token) == (second, f"token-{ports[1]}")
    expected = f"Server: {second} (data in /data/{ports[1]}). You also have {first}; use --url for another one.\n"
    assert capsys.readouterr().err == expected
    connect(Namespace(url=second, token=""))
    assert capsys.readouterr().err == ""
    assert remove_local_server(second)["url"] == first
    assert load_local_server()["url"] == first and len(list_running_servers()) == 1


def test_each_of_the_servers_gets_its_own_token_and_no_other_server_does(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"http://127.0.0.1:{port}" for port in ports)
    record_server(ports[0], 101, monkeypatch)
    record_server(ports[1], 102, monkeypatch)
    assert connect(Namespace(url=first, token=""))[0].token == f"token-{ports[0]}"
    assert connect(Namespace(url="https://deck.example.org", token=""))[0].token == ""
    monkeypatch.setenv("ROLLOUTDECK_URL", first + "/")
    assert Settings.from_environment().token == f"token-{ports[0]}"
    assert connect(Namespace(url=second, token=""))[0].token == f"token-{ports[1]}"
    assert connect(Namespace(url="https://deck.example.org", token=""))[0].token == ""
    monkeypatch.setenv("ROLLOUTDECK_URL", "https://deck.example.org")
    monkeypatch.setenv("ROLLOUTDECK_TOKEN", "remote")
    assert connect(Namespace(url=first, token=""))[0].token == f"token-{ports[0]}"


def test_a_stopped_server_without_another_stays_the_default(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainers that start meanwhile spool for it."""
    record_server(ports[0], 101, monkeypatch)
    assert remove_local_server(f"http://127.0.0.1:{ports[0]}") == {}
    assert load_local_server()["token"] == f"token-{ports[0]}" and list_running_servers() == []


def test_a_server_stops_although_the_other_one_can_t_become_the_default(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, for example."""
    record_server(ports[0], 101, monkeypatch)
    record_server(ports[1], 102, monkeypatch)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local_servers, "write_private_file", fail)
    assert remove_local_server(f"http://127.0.0.1:{ports[1]}") == {}
    assert [server["url"] for server in list_running_servers()] == [f"http://127.0.0.1:{ports[0]}"]


def test_the_token_of_a_server_of_another_machine_with_the_same_home_is_not_used(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may listen at this address of this machine."""
    url = f"http://127.0.0.1:{ports[0]}"
    with monkeypatch.context() as other_machine:
        other_machine.setattr(local_servers, "_get_host_name", lambda: "login1")
        record_server(ports[0], 101, monkeypatch)
    assert load_local_server()["url"] == url, "a machine may change its name"
    with monkeypatch.context() as other_machine:
        other_machine.setattr(local_servers, "_get_host_name", lambda: "login1")
        other_machine.setattr(local_servers, "_read_boot_id", lambda: "another")
        record_server(ports[0], 101, monkeypatch)
    assert load_local_server() == {} and Settings.from_environment().url == ""
    assert connect(Namespace(url=url, token=""))[0].token == ""
    own = home / ".rolloutdeck" / "servers" / f"{local_servers._get_host_name()}-7.json"
    own.write_text(json.dumps({"url": f"http://127.0.0.1:{ports[1]}", "token": "own", "data": ""}))
    assert load_local_server()["token"] == "own"
    local = home / ".rolloutdeck" / "local.json"
    local.write_text(json.dumps({"url": url, "token": "old", "data": ""}))  # of an older version
    assert load_local_server()["token"] == "own"
    own.write_text(json.dumps({"url": url, "token": "own", "data": ""}))
    assert load_local_server()["token"] == "old"
    local.write_text(json.dumps({"url": "https://deck.example.org", "token": "t", "data": "", "host": "login1"}))
    assert load_local_server()["token"] == "t"


def test_a_killed_server_and_one_of_another_machine_are_not_listed(
    home: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    record_server(ports[0], 101, monkeypatch)
    servers = home / ".rolloutdeck" / "servers"
    assert stat.S_IMODE(servers.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in servers.iterdir()} == {0o600}
    body = json.dumps({"url": f"http://127.0.0.1:{ports[1]}", "token": "", "data": ""})
    (servers / "elsewhere-7.json").write_text(body)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    record_server(port, 103, monkeypatch)
    assert [server["url"] for server in list_running_servers()] == [f"http://127.0.0.1:{ports[0]}"]
