"""`watch` and the server: away, refusing, interrupted; heartbeats while files change."""

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
from rolloutdeck.cli.watch import WatchLoop
from rolloutdeck.watch.artifact_collector import ArtifactCollector
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.tree_pattern import TreeRun
from rolloutdeck.watch.upload import RetryLaterError, UploadTarget
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.watch.trainer import Trainer, Watching, turns


def test_while_the_server_is_down_nothing_is_lost_and_it_is_said_once(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = watching()
    deck.mode = "503"
    for step in (1, 2, 3):
        trainer.step(step)
        loop.run_once()
    deck.mode = "ok"
    wait_until(lambda: loop.run_once() or len(deck.dumps) == 3)
    wait_until(lambda: loop.run_once() == 0 and len(deck.dumps) == 3)
    message = capsys.readouterr().err
    assert message.count("Nothing is lost") == 1 and message.count("The server answers again.") == 1


def test_each_outage_is_said_even_if_the_server_only_refuses_files_between_them(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = watching()
    trainer.step(1)
    wait_until(lambda: loop.run_once() or deck.dumps)
    printed = ""

    def is_printed(text: str, count: int) -> bool:
        nonlocal printed
        loop.run_once()
        printed += capsys.readouterr().err
        return printed.count(text) == count

    trainer.step(2)
    for outage in (1, 2):
        deck.mode = "503"
        trainer.step(2, launch=outage)
        wait_until(lambda outage=outage: is_printed("Nothing is lost", outage), 10)  # type: ignore[misc]
        deck.mode = "400"
        wait_until(lambda outage=outage: is_printed("was refused", outage), 10)  # type: ignore[misc]


def test_once_ends_after_a_heartbeat_that_failed(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.watch_run.HEARTBEAT_SECONDS", 0)
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    deck.mode, deck.only = "503", '{"attempt": "files"'  # heartbeats
    path = trainer.step(1)
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


def test_a_refused_file_is_said_and_not_tried_again_until_it_changes(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = watching()
    trainer.step(1)
    trainer.step(2)
    deck.mode, deck.only = "400", "launch 1"
    turns(follow)
    message = capsys.readouterr().err
    assert "because of a test" in message and "sent train step 2" not in message
    deck.mode = "ok"
    assert turns(follow) == 0
    follow = watching()  # a new process
    assert turns(follow) == 0
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.steps()[-1] == ("files", 2)


def test_a_file_that_a_proxy_refuses_keeps_no_other_waiting(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    follow = watching()
    deck.mode, deck.only = "403 proxy", "launch 2"
    trainer.step(1, launch=2)
    for step in (2, 3):
        trainer.step(step)
    for _turn in range(3):
        with pytest.raises(RetryLaterError, match="not from a Rolloutdeck server"):
            follow.send_ready()
    assert deck.steps() == [("files", 2), ("files", 3)]
    deck.mode = "ok"
    turns(follow)
    assert deck.steps() == [("files", 2), ("files", 3), ("files", 1)]


def test_a_requested_file_that_can_t_be_read_keeps_no_step_waiting(
    deck: Deck,
    watching: Watching,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(collector: ArtifactCollector) -> int:
        raise OSError(errno.EIO, "Input/output error", "gen_batch.dp")

    monkeypatch.setattr(ArtifactCollector, "collect", fail)
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = watching()
    for step in (1, 2):
        trainer.step(step)
        assert wait_until(loop.run_once, 5) == 1 and deck.steps()[-1] == ("files", step)
    assert capsys.readouterr().err.count("grpo: gen_batch.dp: Input/output error. Trying again.\n") == 1


def test_many_files_that_a_proxy_refuses_keep_no_other_and_no_heartbeat_waiting(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.watch_run.HEARTBEAT_SECONDS", 0)
    follow = watching()

    def fail_turn() -> None:
        with pytest.raises(RetryLaterError, match="not from a Rolloutdeck server"):
            follow.send_ready()

    deck.mode, deck.only = "403 proxy", "launch"
    for step in (1, 2, 3):
        trainer.step(step, launch=2)
    fail_turn()
    trainer.step(4)
    fail_turn()
    fail_turn()  # step 4 is refused too
    deck.only = "launch 2"
    fail_turn()
    assert deck.steps() == [("files", 4)]
    assert [beat["attempt"] for beat in deck.posted("/heartbeat/")] == ["files"]


def test_once_sends_a_file_again_that_changed_during_its_upload(
    deck: Deck,
    watching: Watching,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_URL", deck.url)
    trainer.step(1)
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
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.cli.watch_run.HEARTBEAT_SECONDS", 0)
    trainer.step(1)
    follow = watching()
    turns(follow, 5)
    assert deck.posted("/heartbeat/") == []
    trainer.step(2)
    turns(follow, 5)
    assert [beat["attempt"] for beat in deck.posted("/heartbeat/")] == ["files"]


def test_a_heartbeat_that_is_not_due_is_not_sent_later_when_the_run_may_have_ended(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.step(1)
    follow = watching()
    turns(follow, 5)
    follow.heartbeat_at = time.monotonic()
    trainer.step(2)
    turns(follow, 5)
    monkeypatch.setattr("rolloutdeck.cli.watch_run.HEARTBEAT_SECONDS", 0)
    turns(follow, 5)
    assert deck.posted("/heartbeat/") == []


def test_a_file_over_eight_megabytes_travels_in_parts_and_goes_on_after_an_interruption(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    row = json.dumps({"input": "q", "output": "x" * 1000, "score": 0.0, "step": 1}) + "\n"
    trainer.write("rollout/1.jsonl", row * 17_000)
    follow = watching()
    follow.send_ready()
    put, spans = follow.target._put, []

    def cut_off(piece: Any, body: Any, span: str = "") -> Any:
        if len(spans) == 2:
            raise RetryLaterError("cut")
        spans.append(span)
        return put(piece, body, span)

    follow.target._put = cut_off  # type: ignore[method-assign]
    with pytest.raises(RetryLaterError):
        turns(follow)
    follow.target._put = put  # type: ignore[method-assign]
    turns(follow)
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
    """The real command beside the real writer, killed once in the middle."""
    run = tmp_path / "run"
    environ = {**os.environ, "HOME": str(tmp_path), "ROLLOUTDECK_URL": deck.url, "ROLLOUTDECK_TOKEN": "t"}
    command = [sys.executable, "-m", "rolloutdeck", "watch", str(run), "--project", "math", "--run", "grpo"]
    writer = [sys.executable, "-m", "tests.support.writer", str(run)]
    watching = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([*writer, "--steps", "8"], check=True, timeout=600)
        wait_until(lambda: len(deck.shown("train")) == 8)
        watching.kill()
        watching.wait()
        watching = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
        subprocess.run([*writer, "--first", "5", "--steps", "6", "--launch", "2"], check=True, timeout=600)
        files = {step: (run / "rollout" / f"{step}.jsonl").read_bytes() for step in range(1, 11)}
        wait_until(lambda: deck.shown("train") == files)
        wait_until(
            lambda: deck.shown("eval") == {step: (run / "val" / f"{step}.jsonl").read_bytes() for step in (4, 8)}
        )
    finally:
        watching.kill()
        watching.wait()
    assert deck.attempts() == ["files", "files-2"]
    assert all(json.loads(line) for body in deck.bodies() for line in body.split(b"\n")[:-1])
    assert all(body.endswith(b"\n") for body in deck.bodies())


def refuse_access(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A folder whose parent may not be read: permissions do not stop root, who may run the tests."""
    stat = os.stat

    def stat_others(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, (str, Path)) and (Path(path) == folder or folder in Path(path).parents):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_others)


def test_a_folder_that_may_not_be_read_is_not_one_that_comes_later(
    watching: Watching, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = WatchLoop(poll=0.001)
    loop.run_followers[None] = watching()
    refuse_access(monkeypatch, tmp_path / "run")
    loop.run_once()
    loop.run_once()
    message = capsys.readouterr().err
    assert message == f"grpo: {tmp_path}/run: Permission denied. Trying again every 30 s.\n"


def test_a_folder_that_may_not_be_read_any_more_is_said_and_the_others_are_sent(
    deck: Deck, watching: Watching, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = watching()
    follow.roots.append(WatchedFolder(tmp_path / "other"))
    trainer.step(1)
    turns(follow)
    refuse_access(monkeypatch, tmp_path / "other")
    trainer.step(2)
    for _turn in range(3):
        with pytest.raises(PermissionError, match="other"):
            follow.send_ready()
    assert deck.steps() == [("files", 1), ("files", 2)]


def test_a_subfolder_that_may_not_be_read_is_said_once_and_the_others_are_sent(
    deck: Deck,
    watching: Watching,
    trainer: Trainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed, scandir = trainer.folder / "val", os.scandir

    def refuse_closed(path: Any = ".") -> Any:
        if isinstance(path, (str, Path)) and Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_closed)
    follow = watching()
    follow.roots.append(WatchedFolder(tmp_path / "later"))  # not there yet
    trainer.step(1)
    trainer.step(1, split="val")
    turns(follow)
    assert deck.steps() == [("files", 1)] and deck.steps("eval") == []
    message = capsys.readouterr().err
    assert message.count("can't be read") == 1 and f"{closed} can't be read: Permission denied.\n" in message


def test_a_run_that_the_server_never_takes_does_not_slow_the_others(
    deck: Deck, watching: Watching, trainer: Trainer, tmp_path: Path
) -> None:
    other = Trainer(tmp_path / "other")
    loop = WatchLoop(poll=0.001)
    loop.run_followers = {TreeRun("math", "a"): watching(), TreeRun("math", "b"): watching(other.folder)}
    deck.mode, deck.only = "503", "launch 1"
    trainer.step(1)
    for step in range(1, 31):
        other.step(step, launch=2)
        loop.run_once()
        time.sleep(0.01)
    first, second = loop.run_followers.values()
    assert first.failures > 3 and second.failures == 0
    assert loop.due <= time.monotonic()
    wait_until(lambda: loop.run_once() == 0 and len(deck.dumps) == 30, 5)


def test_a_server_that_is_away_for_the_first_run_gets_a_request_of_each(
    watching: Watching, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Trainer(tmp_path / "other")
    trainer.step(1)
    other.step(1)
    loop, asked = WatchLoop(poll=0.001), []
    loop.run_followers = {TreeRun("math", "a"): watching(), TreeRun("math", "b"): watching(other.folder)}

    def fail(target: UploadTarget) -> None:
        asked.append(target)
        raise RetryLaterError("the server does not respond")

    monkeypatch.setattr(UploadTarget, "open_run", fail)
    for _turn in range(4):
        loop.run_once()
        time.sleep(max(0.0, loop.due - time.monotonic()))
    assert len(asked) == 4 and len(set(map(id, asked))) == 2
