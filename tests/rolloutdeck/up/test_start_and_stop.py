"""What `up` does with signals, with a home folder that it can't write to, and at addresses of the network."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.up import command
from rolloutdeck.up.command import ServerAddress, bootstrap_server, record_server, serve
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import ServerPaths, acquire_data_lock


@pytest.fixture
def paths(tmp_path: Path) -> ServerPaths:
    (tmp_path / "run").mkdir()
    return ServerPaths(data=tmp_path, server=tmp_path, sockets=tmp_path)


def test_a_signal_that_is_ignored_before_the_start_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """`nohup rolloutdeck up &` goes on when the terminal is closed."""
    found: dict[int, Any] = {}
    monkeypatch.setattr(
        command, "run", lambda *_: found.update({number: signal.getsignal(number) for number in command.STOP_SIGNALS})
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert command.main(Namespace()) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert found[signal.SIGHUP] is signal.SIG_IGN and callable(found[signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) is not found[signal.SIGTERM]


def test_ctrl_c_while_the_database_is_prepared_is_no_failure(
    paths: ServerPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends the signal to the program too."""
    stop, address = threading.Event(), ServerAddress("127.0.0.1", 8460, "")
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 130, b""))
    with pytest.raises(StartFailedError, match="Can't prepare the database"):
        bootstrap_server(paths, {}, stop)
    stop.set()
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(paths.data)}
    monkeypatch.setattr(command, "build_server_environment", lambda *_: environment)
    monkeypatch.setattr(command, "Supervisor", None)  # nothing is started
    serve(Namespace(), paths, -1, address, stop)


@pytest.mark.parametrize(
    ("host", "public", "direct", "local"),
    [
        ("127.0.0.1", "", "http://127.0.0.1:8460", "http://127.0.0.1:8460"),
        ("::1", "https://deck.example.org", "http://[::1]:8460", "http://[::1]:8460"),
        ("0.0.0.0", "https://deck.example.org", "http://127.0.0.1:8460", "http://127.0.0.1:8460"),
        ("::", "https://deck.example.org", "http://[::1]:8460", "http://[::1]:8460"),
        ("192.0.2.1", "https://deck.example.org", "http://192.0.2.1:8460", "https://deck.example.org"),
        ("[fd00::1]", "https://deck.example.org/a", "http://[fd00::1]:8460", "https://deck.example.org/a"),
    ],
)
def test_the_web_process_gets_requests_at_its_own_address(host: str, public: str, direct: str, local: str) -> None:
    """A proxy in front of it may not run yet, and speaks TLS."""
    address = ServerAddress(host, 8460, public)
    assert (address.direct, address.local, address.public) == (direct, local, public or direct)


def test_without_a_home_folder_the_variables_that_commands_need_are_printed(
    paths: ServerPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = paths.data / "missing"
    monkeypatch.setattr(Path, "home", lambda: home)
    record_server(ServerAddress("127.0.0.1", 8460, ""), "secret", paths)
    assert capsys.readouterr().out == (
        f"{home}/.rolloutdeck can't be written (No such file or directory), so commands do not find this server.\n"
        "Commands and trainers on this machine need: "
        f"ROLLOUTDECK_URL=http://127.0.0.1:8460 ROLLOUTDECK_TOKEN_FILE={paths.token}\n"
    )


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EWOULDBLOCK, errno.EACCES])
def test_only_the_lock_of_another_process_refuses_the_data_folder(
    paths: ServerPaths, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some network file systems have no locks."""

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    if code in (errno.EWOULDBLOCK, errno.EACCES):
        (paths.run / "lock").write_text("7 on another-host\n")
        with pytest.raises(StartRefusedError, match="process 7 on another-host"):
            acquire_data_lock(paths)
    else:
        os.close(acquire_data_lock(paths))
