"""What `up` does when the disk under its data folder is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from supervisor.loggers import LevelsByName, Logger

from rolloutdeck.up import child, supervisord
from rolloutdeck.up.paths import open_log, replace_file


def fail(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullStream:
    """A file whose disk is full."""

    closed = False
    write = flush = close = tell = fail


def test_a_log_loses_lines_while_the_disk_is_full_and_then_continues(tmp_path: Path) -> None:
    handler = supervisord.LossyFileHandler(str(tmp_path / "a.log"), maxBytes=1000, backupCount=1)
    handler.setFormat("%(message)s\n")
    logger = Logger(LevelsByName.INFO, [handler])
    logger.info("first")
    log_stream, handler.stream = handler.stream, FullStream()
    logger.info("lost")
    assert (tmp_path / "a.log").read_text() == "first\n"
    log_stream.close()
    for _ in range(300):
        logger.info("later")
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1"} and max(sizes.values()) <= 1010


@pytest.mark.parametrize("text", ["", "12", "twelve"])
def test_a_program_finds_its_supervisor_without_a_pid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "supervisor.pid").write_text(text)
    monkeypatch.delenv("UP_SUPERVISOR_PID", raising=False)
    assert child.find_supervisor(tmp_path / "programs.json") == (12 if text == "12" else os.getppid())
    monkeypatch.setenv("UP_SUPERVISOR_PID", "34")
    assert child.find_supervisor(tmp_path / "programs.json") == 34


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "programs.json"
    replace_file(path, "old")
    monkeypatch.setattr(Path, "replace", fail)
    replace_file(path, "old")  # nothing to write
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_no_empty_pid_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Options:
        pidfile = str(tmp_path / "supervisor.pid")
        logger = Logger(LevelsByName.INFO, [])

    supervisord.write_pid_file(Options())
    assert (tmp_path / "supervisor.pid").read_text() == f"{os.getpid()}\n"
    monkeypatch.setattr(Path, "write_text", fail)
    supervisord.write_pid_file(Options())
    assert (tmp_path / "supervisor.pid").read_text() == f"{os.getpid()}\n"


def test_a_log_that_cannot_be_opened_is_ignored(tmp_path: Path) -> None:
    with open_log(tmp_path / "missing" / "a.log") as log:
        assert log.write(b"x") == 1
