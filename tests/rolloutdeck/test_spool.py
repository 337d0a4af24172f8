from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck import lease, spool, wire, writer
from rolloutdeck.run import Run
from rolloutdeck.sync import sync
from tests.rolloutdeck.receiver import Receiver, until

Start = Callable[..., Run]
ROOT = Path(__file__).parents[2]
HEADER: wire.SpoolHeader = {
    "kind": "dump",
    "project": "math",
    "uid": "run-1",
    "name": "grpo",
    "attempt": "a",
    "run": {},
}
ENDLESS = """
import rolloutdeck, time
run = rolloutdeck.init(project="math", name="killed", queue_bytes=8 << 20)
step = 0
while True:
    step += 1
    run.log_samples([{"response": str(at) * 500, "last": at == 99} for at in range(100)], step=step)
    time.sleep(0.01)
"""


def child(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, stdout=subprocess.PIPE)


def whole(body: bytes) -> bool:
    lines = body.split(b"\n")
    return len(lines) == 101 and json.loads(lines[-2])["last"] is True


def killed_child(spool_root: Path, *, after: int = 3) -> Path:
    """The spool folder of a trainer that was killed while it wrote."""
    running = child(ENDLESS)
    try:
        until(lambda: any(len(spool.waiting(folder)) > after for folder in spool.folders(spool_root)))
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    [folder] = spool.folders(spool_root)
    return folder


def test_a_spool_left_by_a_killed_trainer_is_sent_under_its_own_run_and_attempt(
    at_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_receiver.mode = "500"
    folder = killed_child(spool_root)
    bodies = {path.path.name for path in spool.waiting(folder)}
    at_receiver.mode = "ok"
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "another")
    result = sync([spool_root])
    assert (result.sent, result.waiting, result.problem) == (len(bodies), 0, "")
    assert {(uid, query["attempt"]) for uid, query, _ in at_receiver.dumps} == {(spool.uid_of(folder), "first")}
    assert all(whole(body) for body in at_receiver.bodies()) and at_receiver.bodies()
    assert list(spool_root.iterdir()) == []


def test_no_kill_leaves_a_torn_file_under_a_whole_name(at_receiver: Receiver, spool_root: Path, tmp_path: Path) -> None:
    at_receiver.mode = "500"
    for after in (1, 4, 9):
        folder = killed_child(spool_root, after=after)
        for file in spool.waiting(folder):
            header, start = spool.read_header(file.path)
            body = file.path.read_bytes()[start:]
            assert len(body) == header["bytes"] and (file.kind != "dump" or whole(body))
        folder.rename(tmp_path / f"seen-{after}")


def test_the_next_trainer_sends_what_a_killed_neighbour_left(
    start: Start, at_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_receiver.mode = "500"
    folder = killed_child(spool_root)
    waiting = len(spool.waiting(folder))
    at_receiver.mode = "ok"
    monkeypatch.setenv("ROLLOUTDECK_ATTEMPT", "second")
    run = start()
    until(lambda: len(at_receiver.dumps) == waiting - 1 and not folder.exists())
    assert run.uid not in {uid for uid, _, _ in at_receiver.dumps}
    until(lambda: len(list(spool_root.iterdir())) == 1)


def test_a_living_trainer_keeps_its_spool(at_receiver: Receiver, spool_root: Path) -> None:
    at_receiver.mode = "500"
    running = child(ENDLESS)
    try:
        [folder] = until(lambda: spool.folders(spool_root))
        until(lambda: spool.waiting(folder))
        result = sync([spool_root], patience=0)
        assert (result.live, result.sent) == (1, 0) and not lease.abandoned(folder)
    finally:
        running.kill()
        running.wait()


def test_a_spool_for_another_server_is_sent_there_only_unless_named(
    at_receiver: Receiver, spool_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = spool.Spool(spool_root, "run-1", "a", "http://elsewhere.invalid")
    own.write(HEADER, lambda: [b"body"])
    folder = own.folder
    assert folder
    note = json.loads((folder / "lease").read_text())
    (folder / "lease").write_text(json.dumps({**note, "pid": 2**22 + 1}))
    result = sync()
    assert (result.elsewhere, result.sent) == (1, 0)
    assert sync([spool_root]).sent == 1 and at_receiver.bodies() == [b"body"]


def test_sync_gives_up_and_says_why_and_leaves_all_as_it_was(at_receiver: Receiver, spool_root: Path) -> None:
    own = spool.Spool(spool_root, "run-1", "a")
    own.write(HEADER, lambda: [b"body"])
    own.close()
    for mode in ("404", "500", "login"):
        at_receiver.mode = mode
        result = sync([spool_root], patience=0.2)
        assert (result.sent, result.waiting) == (0, 1) and result.problem
    at_receiver.mode = "ok"
    assert sync([spool_root]).sent == 1


def test_what_a_dead_trainer_dropped_is_told_with_what_it_left(at_receiver: Receiver, spool_root: Path) -> None:
    own = spool.Spool(spool_root, "run-1", "a")
    own.drop("samples: the spool is full", 1024)
    own.write(HEADER, lambda: [b"body"])
    own.close()
    sync([spool_root])
    [body] = at_receiver.posted("/heartbeat/")
    assert body == {"attempt": "a", "dropped": {own.name: {"samples: the spool is full": 1024}}}


def test_only_one_of_several_takes_an_abandoned_spool(spool_root: Path) -> None:
    own = spool.Spool(spool_root, "run-1", "a")
    own.write(HEADER, lambda: [b"body"])
    own.close()
    [folder] = spool.folders(spool_root)
    taken = [lease.take(folder, "") for _ in range(3)]
    assert len([path for path in taken if path]) == 1


def test_a_lease_of_another_machine_ends_only_with_its_time(spool_root: Path) -> None:
    own = spool.Spool(spool_root, "run-1", "a")
    own.write(HEADER, lambda: [b"body"])
    assert own.folder
    note = own.folder / "lease"
    note.write_text(json.dumps({**json.loads(note.read_text()), "machine": "another", "pid": 1}))
    assert not lease.abandoned(own.folder)
    old = time.time() - lease.LEASE_SECONDS - 1
    os.utime(note, (old, old))
    assert lease.abandoned(own.folder)
    lease.touch(own.folder)
    assert not lease.abandoned(own.folder)


def test_a_trainer_whose_spool_was_taken_while_it_slept_writes_into_a_new_one(spool_root: Path) -> None:
    own = spool.Spool(spool_root, "run-1", "a")
    own.write(HEADER, lambda: [b"before"])
    assert own.folder
    own.folder.rename(own.folder.with_name("run-1~a~h~1~taken"))
    own.write(HEADER, lambda: [b"after"])
    bodies = [
        file.path.read_bytes()[-6:].strip() for folder in spool.folders(spool_root) for file in spool.waiting(folder)
    ]
    assert sorted(bodies) == [b"after", b"before"]
    own.folder.rename(own.folder.with_name("run-1~a~h~1~taken2"))
    own.renew()
    assert own.folder is None


def test_a_full_spool_drops_the_newest_counts_it_and_takes_more_when_there_is_room(
    start: Start, at_receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    at_receiver.mode = "500"
    run = start(spool_bytes=40_000)
    for step in range(10):
        run.log_samples([{"response": "x" * 9_000}], step=step)
    run._writer.flush(10)
    at_receiver.mode = "ok"
    until(lambda: not run._writer.own.waiting())
    assert [query["step"] for _, query, _ in at_receiver.dumps] == ["0", "1", "2", "3"]
    run.log_samples([{"response": "x"}], step=11)
    run.finish()
    assert at_receiver.dumps[-1][1]["step"] == "11"
    assert at_receiver.posted("/heartbeat/")[-1]["dropped"] == {run._writer.own.name: {"samples: the spool is full": 6}}
    assert len([record for record in caplog.records if "the spool is full" in record.getMessage()]) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 128 KiB, where this may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(
    start: Start, at_receiver: Receiver, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(small_disk / "spool"))
    at_receiver.mode = "500"
    run = start()
    for step in range(10):
        run.log_samples([{"response": "x" * 30_000}], step=step)
    run._writer.flush(10)
    kept = len([file for file in run._writer.own.waiting() if file.kind == "dump"])
    assert 0 < kept < 10
    at_receiver.mode = "ok"
    until(lambda: len(at_receiver.dumps) == kept)
    run.log_samples([{"response": "y"}], step=11)
    run.finish()
    assert [int(query["step"]) for _, query, _ in at_receiver.dumps] == [*range(kept), 11]
    [dropped] = at_receiver.posted("/heartbeat/")[-1]["dropped"].values()
    assert dropped == {"samples: the spool's disk is full": 10 - kept}


def test_a_spool_that_cannot_be_made_is_counted_and_training_goes_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROLLOUTDECK_SPOOL", str(tmp_path / "file" / "spool"))
    run = start()
    run.log_samples([{"response": "x"}], step=1)
    run._writer.flush(10)
    assert sum(run._writer.own.dropped.values()) == 2


def test_what_the_writer_cannot_keep_up_with_is_dropped_and_counted(spool_root: Path) -> None:
    from rolloutdeck.tables import Rows
    from rolloutdeck.voice import Voice

    own = spool.Spool(spool_root, "run-1", "a")
    slow = writer.Writer(own, HEADER, Voice(), lambda: None, limit=1000)
    for _ in range(3):
        slow.put(writer.Samples(Rows([{"response": "x" * 600}]), {}))
    assert own.dropped == {"samples: more than the writer could keep up with": 2}
    slow.flush(5)
    assert len(own.waiting()) == 1


def test_a_file_that_changes_while_it_is_copied_is_copied_again(tmp_path: Path, spool_root: Path) -> None:
    from rolloutdeck.voice import Voice

    path = tmp_path / "12.jsonl"
    path.write_bytes(b"a" * (writer.CHUNK_BYTES + 10))
    item = writer.File(path, {})
    body, first = item.body, True

    def changing() -> Iterator[bytes]:
        nonlocal first
        for piece in body():
            yield piece
            if first:
                path.write_bytes(b"b" * 20)
                first = False

    item.body = changing  # type: ignore[method-assign]
    own = spool.Spool(spool_root, "run-1", "a")
    filling = writer.Writer(own, HEADER, Voice(), lambda: None)
    filling.put(item)
    filling.flush(5)
    [file] = own.waiting()
    assert file.path.read_bytes().endswith(b"\n" + b"b" * 20)


FORKING = """
import os, rolloutdeck
run = rolloutdeck.init(project="math", name="forked")
run.log_samples([{"response": "parent"}], step=1)
pids = []
for at in range(2):
    pid = os.fork()
    if pid == 0:
        run.log_samples([{"response": f"child {at}"}], step=1)
        run._close(20)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
run.finish()
"""
WITH_PROCESSES = """
import multiprocessing, rolloutdeck
run = rolloutdeck.init(project="math", name="forked")
run.log_samples([{"response": "parent"}], step=1)
def work(at):
    run.log_samples([{"response": f"child {at}"}], step=1)
children = [multiprocessing.get_context("fork").Process(target=work, args=(at,)) for at in range(2)]
[process.start() for process in children]
[process.join() for process in children]
run.finish()
"""


@pytest.mark.parametrize("program", [FORKING, WITH_PROCESSES])
def test_forked_children_record_each_into_its_own_spool(at_receiver: Receiver, spool_root: Path, program: str) -> None:
    assert child(program).wait(60) == 0
    said = sorted(json.loads(body)["response"] for body in at_receiver.bodies())
    assert said == ["child 0", "child 1", "parent"]
    assert len({(uid, query["attempt"]) for uid, query, _ in at_receiver.dumps}) == 1
    assert len(at_receiver.posted("/finish/")) == 1
    assert list(spool_root.iterdir()) == []


LISTED_IMPORTS = """
import importlib.abc, sys, threading
class Listed(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            print(name, flush=True)
sys.meta_path.insert(0, Listed())
import rolloutdeck
run = rolloutdeck.init(project="math", name="é")
run.log({"loss": 1.0}, step=1)
run.log_samples([{"response": "é", "score": float("nan")}], step=1)
run.log_file(__import__("os").environ["GIVEN"], step=1)
run.report_replay(1, "miss")
run.finish()
"""


def test_no_thread_of_ours_imports_anything_since_a_fork_in_that_moment_locks_the_module_for_the_child(
    at_receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.jsonl").write_text("{}\n")
    monkeypatch.setenv("GIVEN", str(tmp_path / "1.jsonl"))
    monkeypatch.setenv("ROLLOUTDECK_URL", at_receiver.url.replace("127.0.0.1", "localhost"))
    said, _ = child(LISTED_IMPORTS).communicate(timeout=60)
    assert len(at_receiver.posted("/finish/")) == 1
    assert said.split() == []


ENDING = """
import logging, sys, rolloutdeck
logging.basicConfig(stream=sys.stdout)
run = rolloutdeck.init(project="math", name="ending", exit_timeout={seconds})
for step in range(200):
    run.log_samples([{{"response": "x" * 1000}}] * 50, step=step)
{end}
"""


def test_a_trainer_that_ends_without_finish_loses_nothing(at_receiver: Receiver, spool_root: Path) -> None:
    assert child(ENDING.format(seconds=30, end="")).wait(60) == 0
    assert len(at_receiver.dumps) == 200
    assert at_receiver.posted("/finish/")[0]["outcome"] == "finished"


def test_a_trainer_that_dies_of_an_error_ends_as_failed(at_receiver: Receiver) -> None:
    running = child("import rolloutdeck; rolloutdeck.init(project='math', exit_timeout=20); 1 / 0")
    running.wait(60)
    assert at_receiver.posted("/finish/")[0]["outcome"] == "failed"


def test_a_trainer_that_ends_while_the_server_is_down_says_what_waits_and_how_to_send_it(
    at_receiver: Receiver, spool_root: Path
) -> None:
    at_receiver.down()
    running = child(ENDING.format(seconds=0.2, end=""))
    said, _ = running.communicate(timeout=60)
    assert f"202 files wait in {spool_root}" in said and f"rolloutdeck sync {spool_root}" in said
    at_receiver.up()
    assert sync([spool_root]).sent == 202
    assert len(at_receiver.dumps) == 200


def test_the_heartbeat_says_the_last_step_and_what_was_dropped(
    start: Start, at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HEARTBEAT_SECONDS", 0.1)
    run: Any = start()
    run.log({"a": 1}, step=41)
    run.log("nonsense", step=42)
    until(lambda: [body for body in at_receiver.posted("/heartbeat/") if body.get("step") == 41 and body["dropped"]])


def test_the_heartbeat_keeps_the_lease(start: Start, monkeypatch: pytest.MonkeyPatch, spool_root: Path) -> None:
    monkeypatch.setattr(lease, "TOUCH_SECONDS", 0.05)
    run = start()
    folder = until(lambda: run._writer.own.folder)
    os.utime(folder / "lease", (1, 1))
    until(lambda: (folder / "lease").stat().st_mtime > 1)


def test_warnings_do_not_repeat(caplog: pytest.LogCaptureFixture) -> None:
    from rolloutdeck.voice import Voice

    voice = Voice()
    with caplog.at_level(logging.WARNING):
        voice.once("a", "said")
        voice.once("a", "said")
        assert voice.forget("a") and not voice.forget("a")
        voice.once("a", "said")
    assert caplog.messages == ["said", "said"]


def test_a_file_that_is_sent_while_its_folder_is_listed_hides_no_other(tmp_path: Path) -> None:
    for number in range(20):  # listed, but no longer there when looked at
        (tmp_path / f"{number:02}.dump").symlink_to(tmp_path / "gone")
    for name in ("30.dump", "31.dump"):
        (tmp_path / name).write_bytes(b"{}\n")
    assert [file.path.name for file in spool.waiting(tmp_path)] == ["30.dump", "31.dump"]
