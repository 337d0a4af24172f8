"""The spool of an ended trainer is sent by another process; that of a running trainer is not."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import ANY

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.client import launch, lease, spool
from rolloutdeck.client.running_attempts import find_running_attempts
from rolloutdeck.client.threads import connect_server
from rolloutdeck.client.upload import sender
from rolloutdeck.client.upload.sync import SyncResult, sync_spools
from rolloutdeck.lib import OnceLogger
from tests.rolloutdeck.support.fake_server import Receiver, wait_until
from tests.rolloutdeck.support.programs import (
    ENDLESS_PROGRAM,
    HEADER,
    Start,
    create_abandoned_spool,
    is_complete,
    start_program,
)


def test_a_spool_left_by_a_killed_trainer_is_sent_under_its_own_run_and_attempt(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected_receiver.mode = "500"
    folder = create_abandoned_spool(spool_root)
    bodies = {path.path.name for path in spool.list_spool_files(folder)}
    connected_receiver.mode = "ok"
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "another")
    result = sync_spools([spool_root])
    assert (result.sent, result.waiting, result.error) == (len(bodies), 0, "")
    assert {(uid, query["attempt"]) for uid, query, _ in connected_receiver.dumps} == {
        (spool.parse_spool_run_uid(folder), "first")
    }
    assert all(is_complete(body) for body in connected_receiver.bodies()) and connected_receiver.bodies()
    assert list(spool_root.iterdir()) == []


def test_the_next_trainer_sends_the_spool_of_a_killed_one(
    start: Start, connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected_receiver.mode = "500"
    folder = create_abandoned_spool(spool_root)
    waiting = len(spool.list_spool_files(folder))
    connected_receiver.mode = "ok"
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "second")
    run = start()
    wait_until(lambda: len(connected_receiver.dumps) == waiting - 1 and not folder.exists())
    assert run.uid not in {uid for uid, _, _ in connected_receiver.dumps}
    wait_until(lambda: len(list(spool_root.iterdir())) == 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder another's")
def test_the_spool_of_another_user_is_not_sent(start: Start, connected_receiver: Receiver, spool_root: Path) -> None:
    """It may contain the paths of files that its own user may not read."""
    connected_receiver.mode = "500"
    other_folder = create_abandoned_spool(spool_root)
    os.chown(other_folder, 54_321, -1)
    waiting = len(spool.list_spool_files(other_folder))
    connected_receiver.mode = "ok"
    run = start()
    run.log_samples([{"prompt": "1+1", "response": "2"}], step=1)
    wait_until(lambda: run.uid in {uid for uid, _, _ in connected_receiver.dumps})
    assert len(spool.list_spool_files(other_folder)) == waiting and lease.is_abandoned(other_folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder another's")
def test_sync_by_root_does_not_send_the_spools_of_other_users(
    connected_receiver: Receiver, spool_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_spool, other_spool = (spool.Spool(spool_root, name, "a") for name in ("run-1", "run-2"))
    for item in (own_spool, other_spool):
        item.write(HEADER, lambda: [b"body"])
        item.close()
    assert other_spool.folder
    os.chown(other_spool.folder, 54_321, -1)
    for named in ([spool_root], [other_spool.folder], []):
        result = sync_spools(named)
        assert (result.other_user_spools, len(spool.list_spool_files(other_spool.folder))) == (1, 1)
    assert len(connected_receiver.dumps) == 1
    assert main(["sync", str(spool_root)]) == 0
    assert "1 spool of other users" in capsys.readouterr().err


@pytest.fixture
def shared_root() -> Iterator[Path]:
    """A spool root that every user may write to, which pytest's own folders are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@contextmanager
def as_another_user() -> Iterator[None]:
    os.seteuid(54_321)
    try:
        yield
    finally:
        os.seteuid(0)


def write_spool(root: Path, uid: str) -> spool.Spool:
    own_spool = spool.Spool(root, uid, "a")
    own_spool.write({**HEADER, "uid": uid}, lambda: [uid.encode()])
    return own_spool


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_spool_that_only_its_user_can_read_does_not_stop_uploads_and_sync_of_others(
    connected_receiver: Receiver, shared_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(shared_root))
    write_spool(shared_root, "run-0").close()
    assert sync_spools([shared_root]).sent == 1  # also imports what the other user may not be able to read
    other_spool = write_spool(shared_root, "run-1")
    other_spool.close()
    assert other_spool.folder
    with as_another_user():
        assert (shared_root / other_spool.name).stat().st_mode & 0o777 == 0o700
        own_spool = write_spool(shared_root, "run-2")
        spool_sender = sender.Sender(own_spool, connect_server, OnceLogger())
        while own_spool.list_files():
            spool_sender._send_next()
        own_spool.close()
        write_spool(shared_root, "run-3").close()
        assert find_running_attempts(shared_root) == set()
        for named, sent in ((shared_root, 1), (other_spool.folder, 0)):
            assert sync_spools([named]) == SyncResult(sent=sent, bytes=ANY, other_user_spools=1)
    assert connected_receiver.bodies() == [b"run-0", b"run-2", b"run-3"]
    assert len(other_spool.list_files()) == 1


def test_an_unreadable_spool_root_does_not_stop_uploads_of_the_process_itself(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(root: Path) -> list[Path]:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    own_spool = write_spool(spool_root, "run-1")
    monkeypatch.setattr(spool, "find_spool_folders", fail)
    spool_sender = sender.Sender(own_spool, connect_server, OnceLogger())
    while own_spool.list_files():
        spool_sender._send_next()
    assert connected_receiver.bodies() == [b"run-1"]


def test_a_spool_that_needs_the_user_does_not_stop_takeover_and_cleanup_of_others(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "MAX_ADOPTED_SPOOLS", 1)
    connected_receiver.mode, connected_receiver.only = "404", "run-1"
    for uid in ("run-1", "run-2", "run-3"):
        write_spool(spool_root, uid).close()
    own_spool = write_spool(spool_root, "run-3")
    spool_sender = sender.Sender(own_spool, connect_server, OnceLogger())

    def list_adopted() -> list[str]:
        spool_sender._send_next()
        return [spool.parse_spool_run_uid(folder) for folder in spool_sender.adopted]

    assert list_adopted() == ["run-3"]  # first those of its own run
    wait_until(lambda: list_adopted() == ["run-1"] and b"run-2" in connected_receiver.bodies())
    assert [spool.parse_spool_run_uid(folder) for folder in spool.find_spool_folders(spool_root)] == ["run-1", "run-3"]
    spool_sender.close()
    own_spool.close()


def test_a_running_trainer_keeps_its_spool(connected_receiver: Receiver, spool_root: Path) -> None:
    connected_receiver.mode = "500"
    running = start_program(ENDLESS_PROGRAM)
    try:
        [folder] = wait_until(lambda: spool.find_spool_folders(spool_root))
        wait_until(lambda: spool.list_spool_files(folder))
        result = sync_spools([spool_root], time_budget=0)
        assert (result.live_spools, result.sent) == (1, 0) and not lease.is_abandoned(folder)
    finally:
        running.kill()
        running.wait()


def test_a_spool_for_another_server_is_sent_there_only_unless_named(
    connected_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a", "http://elsewhere.invalid")
    own_spool.write(HEADER, lambda: [b"body"])
    folder = own_spool.folder
    assert folder
    note = json.loads((folder / "lease").read_text())
    (folder / "lease").write_text(json.dumps({**note, "pid": 2**22 + 1}))
    result = sync_spools()
    assert (result.other_server_spools, result.sent) == (1, 0)
    assert sync_spools([spool_root]).sent == 1 and connected_receiver.bodies() == [b"body"]


def test_sync_gives_up_with_the_reason_and_keeps_the_files(connected_receiver: Receiver, spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write(HEADER, lambda: [b"body"])
    own_spool.close()
    for mode in ("404", "500", "login"):
        connected_receiver.mode = mode
        result = sync_spools([spool_root], time_budget=0.2)
        assert (result.sent, result.waiting) == (0, 1) and result.error
    connected_receiver.mode = "ok"
    assert sync_spools([spool_root]).sent == 1


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        ({"uid": None}, b"body", "its first line lacks uid"),
        ({"kind": "artifact"}, b'{"path": "/"}', "its body lacks role, step"),
        ({"kind": "metrics"}, b"[]", "its body lacks points"),
    ],
)
def test_a_file_with_an_incomplete_header_or_body_is_rejected_and_delays_no_other(
    connected_receiver: Receiver, spool_root: Path, header: dict[str, str], body: bytes, why: str
) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write({**HEADER, **header}, lambda: [body])  # type: ignore[typeddict-item]
    own_spool.write(HEADER, lambda: [b"body"])
    own_spool.close()
    result = sync_spools([spool_root])
    assert (result.sent, result.rejected, result.waiting) == (1, 1, 0) and connected_receiver.bodies() == [b"body"]
    [reason] = spool_root.glob(f"*/{spool.REJECTED_FOLDER}/*.txt")
    assert why in reason.read_text()


def test_the_drop_counts_of_an_ended_trainer_are_sent_with_its_spool(
    connected_receiver: Receiver, spool_root: Path
) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.count_dropped("samples: the spool is full", 1024)
    own_spool.write(HEADER, lambda: [b"body"])
    own_spool.close()
    sync_spools([spool_root])
    [body] = connected_receiver.posted("/heartbeat/")
    assert body == {"attempt": "a", "dropped": {own_spool.name: {"samples: the spool is full": 1024}}}


def test_only_one_of_several_takes_an_abandoned_spool(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write(HEADER, lambda: [b"body"])
    own_spool.close()
    [folder] = spool.find_spool_folders(spool_root)
    taken = [lease.take_over_spool(folder, "") for _ in range(3)]
    assert len([path for path in taken if path]) == 1


def test_a_lease_of_another_machine_ends_only_with_its_time(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write(HEADER, lambda: [b"body"])
    assert own_spool.folder
    note = own_spool.folder / "lease"
    note.write_text(json.dumps({**json.loads(note.read_text()), "machine": "another", "pid": 1}))
    assert not lease.is_abandoned(own_spool.folder)
    old = time.time() - lease.LEASE_SECONDS - 1
    os.utime(note, (old, old))
    assert lease.is_abandoned(own_spool.folder)
    lease.renew_lease(own_spool.folder)
    assert not lease.is_abandoned(own_spool.folder)


def test_a_trainer_whose_spool_was_taken_while_it_slept_writes_into_a_new_one(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write(HEADER, lambda: [b"before"])
    assert own_spool.folder
    own_spool.folder.rename(own_spool.folder.with_name("run-1~a~h~1~taken"))
    own_spool.write(HEADER, lambda: [b"after"])
    bodies = [
        file.path.read_bytes()[-6:].strip()
        for folder in spool.find_spool_folders(spool_root)
        for file in spool.list_spool_files(folder)
    ]
    assert sorted(bodies) == [b"after", b"before"]
    own_spool.folder.rename(own_spool.folder.with_name("run-1~a~h~1~taken2"))
    own_spool.renew_lease()
    assert own_spool.folder is None


def test_a_file_is_written_again_if_the_heartbeat_notices_first_that_the_spool_was_taken(spool_root: Path) -> None:
    own_spool = spool.Spool(spool_root, "run-1", "a")
    own_spool.write(HEADER, lambda: [b"before"])

    def read_and_lose_spool() -> Iterator[bytes]:
        yield b"while "
        if own_spool.folder and not (spool_root / "run-1~a~h~1~taken").exists():
            own_spool.folder.rename(spool_root / "run-1~a~h~1~taken")
            own_spool.renew_lease()
        yield b"away"

    assert own_spool.write(HEADER, read_and_lose_spool).read_bytes().endswith(b"while away")


def test_a_zombie_process_counts_as_ended(spool_root: Path) -> None:
    pid = os.fork()
    if pid == 0:
        spool.Spool(spool_root, "run-1", "a").write(HEADER, lambda: [b"before"])
        os._exit(9)
    [folder] = wait_until(
        lambda: [found for found in spool.find_spool_folders(spool_root) if spool.list_spool_files(found)]
    )
    wait_until(lambda: launch.has_ended(pid))
    assert lease.is_abandoned(folder)
    os.waitpid(pid, 0)


def test_the_heartbeat_keeps_the_lease(start: Start, monkeypatch: pytest.MonkeyPatch, spool_root: Path) -> None:
    monkeypatch.setattr(lease, "LEASE_RENEWAL_SECONDS", 0.05)
    run = start()
    folder = wait_until(lambda: run._threads.spool.folder)
    os.utime(folder / "lease", (1, 1))
    wait_until(lambda: (folder / "lease").stat().st_mtime > 1)
