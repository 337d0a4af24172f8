"""The journal of a judge: what stays pending after a stop, file systems without locks, and full disks."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.rescore.endpoint import Endpoint, RefusedError
from rolloutdeck.cli.rescore.instructions import TemplateInstructions
from rolloutdeck.cli.rescore.journal import Journal, check_folder_writable
from rolloutdeck.cli.rescore.judge import Judge
from rolloutdeck.errors import UsageError

OWNER = {"digest": "0", "model": "tiny-judge", "name": "score.judge"}


def test_a_call_that_waits_for_its_next_try_when_another_one_fails_stays_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(endpoint: Endpoint, data: bytes) -> dict[str, Any]:
        if b"busy" in data:
            raise RefusedError("the endpoint answered 429", 600.0)
        raise UsageError("No call can work")

    monkeypatch.setattr(Endpoint, "_send", send)
    endpoint = Endpoint("http://judge.example/v1", "tiny-judge", "", 1.0, 6, {})
    samples = [{"id": name, "response": name} for name in ("busy", "wrong")]
    results: list[dict[str, Any]] = []
    with Journal(tmp_path / "calls.jsonl", OWNER) as journal:
        judge = Judge(endpoint, TemplateInstructions("{response}"), journal, retry=False)
        with pytest.raises(UsageError, match="No call can work"):
            for result in judge.run(samples, 2):
                results.append(result)
        assert results == []
        assert not any(journal.is_unanswered(sample["id"]) for sample in samples), "the next command sends them"


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EWOULDBLOCK, errno.EACCES])
def test_only_the_lock_of_another_command_refuses_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some network file systems have no locks."""

    def fail(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", fail)
    journal = Journal(tmp_path / "calls.jsonl", OWNER)
    if code in (errno.EWOULDBLOCK, errno.EACCES):
        with pytest.raises(UsageError, match="Another command uses the journal"):
            journal.__enter__()
    else:
        with journal:
            journal.write("sent", "a")
            assert journal.is_unanswered("a")


def test_a_journal_on_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file can still be created there."""
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115
    with pytest.raises(UsageError) as refused:
        check_folder_writable(tmp_path)
    assert str(refused.value).startswith(f"No journal can be written in {tmp_path}: No space left on device. ")
