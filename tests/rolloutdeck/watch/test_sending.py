"""`watch` with a server that is down, refuses files or is interrupted; and heartbeats while files change."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck.cli.entry import main
from rolloutdeck.cli.folders.watch import WatchLoop
from rolloutdeck.watch.artifact_collector import ArtifactCollector
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.tree_pattern import TreeRun
from rolloutdeck.watch.upload import RetryLaterError, UploadTarget
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, run_turns


def test_nothing_is_lost_while_the_server_is_down_and_one_message_says_so(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = start_watch()
    deck.mode = "503"
    for step in (1, 2, 3):
        trainer.write_step(step)
        loop.run_once()
    deck.mode = "ok"
    wait_until(lambda: loop.run_once() or len(deck.dumps) == 3)
    wait_until(lambda: loop.run_once() == 0 and len(deck.dumps) == 3)
    message = capsys.readouterr().err
    assert message.count("Nothing is lost") == 1 and message.count("The server answers again.") == 1


def test_each_outage_is_reported_even_if_the_server_only_refuses_files_between_them(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = start_watch()
    trainer.write_step(1)
    wait_until(lambda: loop.run_once() or deck.dumps)
    printed = ""

    def is_printed(text: str, count: int) -> bool:
        nonlocal printed
        loop.run_once()
        printed += capsys.readouterr().err
        return printed.count(text) == count

    trainer.write_step(2)
    for outage in (1, 2):
        deck.mode = "503"
        trainer.write_step(2, launch=outage)
        wait_until(lambda outage=outage: is_printed("Nothing is lost", outage), 10)  # type: ignore[misc]
        deck.mode = "400"
        wait_until(lambda outage=outage: is_printed("was refused", outage), 10)  # type: ignore[misc]


def test_watch_once_ends_after_a_heartbeat_that_failed(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.folders.run_follower.HEARTBEAT_SECONDS", 0)
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    deck.mode, deck.only = "503", '{"attempt": "files"'  # heartbeats
    path = trainer.write_step(1)
    pauses, sleep = [], time.sleep

    def delete_sent_file_during_pause(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 100, "the command does not end"
        if deck.dumps:
            path.unlink(missing_ok=True)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", delete_sent_file_during_pause)
    options = ("--project", "math", "--run", "grpo", "--once", "--poll", "0.01")
    assert main(["watch", str(trainer.folder), *options]) == 0
    assert deck.steps() == [("files", 1)] and not path.exists()


def test_a_refused_file_is_reported_and_not_sent_again_until_it_changes(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = start_watch()
    trainer.write_step(1)
    trainer.write_step(2)
    deck.mode, deck.only = "400", "launch 1"
    run_turns(watch)
    message = capsys.readouterr().err
    assert "because of a test" in message and "sent train step 2" not in message
    deck.mode = "ok"
    assert run_turns(watch) == 0
    watch = start_watch()  # a new process
    assert run_turns(watch) == 0
    trainer.write_step(2, launch=2)
    run_turns(watch)
    assert deck.steps()[-1] == ("files", 2)


def test_a_file_that_a_proxy_refuses_delays_no_other(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    watch = start_watch()
    deck.mode, deck.only = "403 proxy", "launch 2"
    trainer.write_step(1, launch=2)
    for step in (2, 3):
        trainer.write_step(step)
    for _turn in range(3):
        with pytest.raises(RetryLaterError, match="not from a Rolloutdeck server"):
            watch.send_ready()
    assert deck.steps() == [("files", 2), ("files", 3)]
    deck.mode = "ok"
    run_turns(watch)
    assert deck.steps() == [("files", 2), ("files", 3), ("files", 1)]


def test_a_requested_file_that_can_t_be_read_delays_no_step(
    deck: Deck,
    start_watch: StartWatch,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(collector: ArtifactCollector) -> int:
        raise OSError(errno.EIO, "Input/output error", "gen_batch.dp")

    monkeypatch.setattr(ArtifactCollector, "collect", fail)
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = start_watch()
    for step in (1, 2):
        trainer.write_step(step)
        assert wait_until(loop.run_once, 5) == 1 and deck.steps()[-1] == ("files", step)
    assert capsys.readouterr().err.count("grpo: gen_batch.dp: Input/output error. Trying again.\n") == 1


def test_many_files_that_a_proxy_refuses_delay_no_other_and_no_heartbeat(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.folders.run_follower.HEARTBEAT_SECONDS", 0)
    watch = start_watch()

    def fail_turn() -> None:
        with pytest.raises(RetryLaterError, match="not from a Rolloutdeck server"):
            watch.send_ready()

    deck.mode, deck.only = "403 proxy", "launch"
    for step in (1, 2, 3):
        trainer.write_step(step, launch=2)
    fail_turn()
    trainer.write_step(4)
    fail_turn()
    fail_turn()  # step 4 is refused too
    deck.only = "launch 2"
    fail_turn()
    assert deck.steps() == [("files", 4)]
    assert [beat["attempt"] for beat in deck.posted("/heartbeat/")] == ["files"]


def test_watch_once_sends_a_file_again_that_changed_during_its_upload(
    deck: Deck,
    start_watch: StartWatch,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    trainer.write_step(1)
    put, tries = UploadTarget._put, []

    def change_once(self: UploadTarget, part: Any, body: Any, span: str = "") -> Any:
        tries.append(part)
        if len(tries) <= 2:  # the request for the offset, and the bytes
            body = b"changed"[: len(body)]
        return put(self, part, body, span)

    monkeypatch.setattr(UploadTarget, "_put", change_once)
    assert main(["watch", str(trainer.folder), "--project", "math", "--run", "grpo", "--once", "--poll", "0.01"]) == 0
    assert deck.steps() == [("files", 1)]
    assert capsys.readouterr().err.count("sent train step 1") == 1


def test_a_heartbeat_is_sent_only_while_files_change(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.folders.run_follower.HEARTBEAT_SECONDS", 0)
    trainer.write_step(1)
    watch = start_watch()
    run_turns(watch, 5)
    assert deck.posted("/heartbeat/") == []
    trainer.write_step(2)
    run_turns(watch, 5)
    assert [beat["attempt"] for beat in deck.posted("/heartbeat/")] == ["files"]


def test_a_heartbeat_that_is_not_due_is_not_sent_later_when_the_run_may_have_ended(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.write_step(1)
    watch = start_watch()
    run_turns(watch, 5)
    watch.heartbeat_at = time.monotonic()
    trainer.write_step(2)
    run_turns(watch, 5)
    monkeypatch.setattr("rolloutdeck.cli.folders.run_follower.HEARTBEAT_SECONDS", 0)
    run_turns(watch, 5)
    assert deck.posted("/heartbeat/") == []


def test_a_file_over_eight_megabytes_is_sent_in_parts_and_continues_after_an_interruption(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    row = json.dumps({"input": "q", "output": "x" * 1000, "score": 0.0, "step": 1}) + "\n"
    trainer.write("rollout/1.jsonl", row * 17_000)
    watch = start_watch()
    watch.send_ready()
    put, spans = watch.target._put, []

    def fail_third_part(piece: Any, body: Any, span: str = "") -> Any:
        if len(spans) == 2:
            raise RetryLaterError("cut")
        spans.append(span)
        return put(piece, body, span)

    watch.target._put = fail_third_part  # type: ignore[method-assign]
    with pytest.raises(RetryLaterError):
        run_turns(watch)
    watch.target._put = put  # type: ignore[method-assign]
    run_turns(watch)
    size = len(row) * 17_000
    assert deck.spans == [
        f"bytes */{size}",
        f"bytes 0-8388607/{size}",
        f"bytes */{size}",
        f"bytes 8388608-16777215/{size}",
        f"bytes 16777216-{size - 1}/{size}",
    ]
    assert len(deck.dumps) == 1 and len(deck.bodies()[0]) == size


def test_another_process_that_writes_slowly_and_resumes_shows_each_step_once_and_whole(
    deck: Deck, tmp_path: Path
) -> None:
    """The real command and a process that writes files; the command is killed once."""
    run = tmp_path / "run"
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    command = [sys.executable, "-m", "rolloutdeck", "watch", str(run), "--project", "math", "--run", "grpo"]
    writer = [sys.executable, "-m", "tests.support.writer", str(run)]
    process = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([*writer, "--steps", "8"], check=True, timeout=600)
        wait_until(lambda: len(deck.visible_steps("train")) == 8)
        process.kill()
        process.wait()
        process = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
        subprocess.run([*writer, "--first", "5", "--steps", "6", "--launch", "2"], check=True, timeout=600)
        files = {step: (run / "rollout" / f"{step}.jsonl").read_bytes() for step in range(1, 11)}
        wait_until(lambda: deck.visible_steps("train") == files)
        wait_until(
            lambda: (
                deck.visible_steps("eval") == {step: (run / "val" / f"{step}.jsonl").read_bytes() for step in (4, 8)}
            )
        )
    finally:
        process.kill()
        process.wait()
    assert deck.attempts() == ["files", "files-2"]
    assert all(json.loads(line) for body in deck.bodies() for line in body.split(b"\n")[:-1])
    assert all(body.endswith(b"\n") for body in deck.bodies())


def refuse_access(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes a folder unreadable. Permissions do not stop root, who may run the tests."""
    stat = os.stat

    def stat_others(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, (str, Path)) and (Path(path) == folder or folder in Path(path).parents):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_others)


def test_an_unreadable_folder_is_not_reported_as_one_that_does_not_exist_yet(
    start_watch: StartWatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = start_watch()
    refuse_access(monkeypatch, tmp_path / "run")
    loop.run_once()
    loop.run_once()
    message = capsys.readouterr().err
    assert message == f"grpo: {tmp_path}/run: Permission denied. Trying again every 30 s.\n"


def test_a_folder_that_becomes_unreadable_is_reported_and_the_others_are_sent(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = start_watch()
    watch.roots.append(WatchedFolder(tmp_path / "other"))
    trainer.write_step(1)
    run_turns(watch)
    refuse_access(monkeypatch, tmp_path / "other")
    trainer.write_step(2)
    for _turn in range(3):
        with pytest.raises(PermissionError, match="other"):
            watch.send_ready()
    assert deck.steps() == [("files", 1), ("files", 2)]


def test_an_unreadable_subfolder_is_reported_once_and_the_others_are_sent(
    deck: Deck,
    start_watch: StartWatch,
    trainer: Trainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    unreadable, scandir = trainer.folder / "val", os.scandir

    def refuse_unreadable(path: Any = ".") -> Any:
        if isinstance(path, (str, Path)) and Path(path) == unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_unreadable)
    watch = start_watch()
    watch.roots.append(WatchedFolder(tmp_path / "later"))  # not there yet
    trainer.write_step(1)
    trainer.write_step(1, split="val")
    run_turns(watch)
    assert deck.steps() == [("files", 1)] and deck.steps("eval") == []
    message = capsys.readouterr().err
    assert message.count("can't be read") == 1 and f"{unreadable} can't be read: Permission denied.\n" in message


def test_a_run_whose_files_always_fail_does_not_slow_the_others(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, tmp_path: Path
) -> None:
    other = Trainer(tmp_path / "other")
    loop = WatchLoop(poll=0.001)
    loop.run_followers = {TreeRun("math", "a"): start_watch(), TreeRun("math", "b"): start_watch(other.folder)}
    deck.mode, deck.only = "503", "launch 1"
    trainer.write_step(1)
    for step in range(1, 31):
        other.write_step(step, launch=2)
        loop.run_once()
        time.sleep(0.01)
    first, second = loop.run_followers.values()
    assert first.failures > 3 and second.failures == 0
    assert loop.due <= time.monotonic()
    wait_until(lambda: loop.run_once() == 0 and len(deck.dumps) == 30, 5)


def test_each_run_sends_requests_while_the_server_does_not_respond(
    start_watch: StartWatch, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Trainer(tmp_path / "other")
    trainer.write_step(1)
    other.write_step(1)
    loop, targets = WatchLoop(poll=0.001), []
    loop.run_followers = {TreeRun("math", "a"): start_watch(), TreeRun("math", "b"): start_watch(other.folder)}

    def fail(target: UploadTarget) -> None:
        targets.append(target)
        raise RetryLaterError("the server does not respond")

    monkeypatch.setattr(UploadTarget, "open_run", fail)
    for _turn in range(4):
        loop.run_once()
        time.sleep(max(0.0, loop.due - time.monotonic()))
    assert len(targets) == 4 and len(set(map(id, targets))) == 2
