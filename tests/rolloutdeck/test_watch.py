"""`watch` on files that are written as trainers write them: torn lines, whole-file rewrites, restarts, lost memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolloutdeck import watch
from rolloutdeck.commands.watch import Follow, Loop
from rolloutdeck.http import Server
from rolloutdeck.push import NotNow, Target
from rolloutdeck.scan import Choice
from rolloutdeck.watch import Root
from tests.rolloutdeck.deck import Deck
from tests.rolloutdeck.receiver import until

Watching = Callable[..., Follow]


@pytest.fixture
def deck() -> Iterator[Deck]:
    running = Deck()
    yield running
    running.down()


@pytest.fixture
def watching(deck: Deck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watching:
    """A new process's view of the folder `run`, whose state file lies in a home of its own. Still means still at two
    looks, so that no test waits."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)

    def start(folder: Path = tmp_path / "run", choice: Choice | None = None) -> Follow:
        target = Target(Server(deck.url, "secret"), "math", "grpo", "files")
        return Follow(target, [Root(folder)], folder, choice or Choice())

    return start


class Trainer:
    """Writes files at times of its own, so that the order of writing is what the test says it is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, 1_700_000_000

    def write(self, name: str, text: str, mode: str = "w") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
        self.clock += 10
        os.utime(path, (self.clock, self.clock))
        return path

    def step(self, step: int, launch: int = 1, split: str = "rollout") -> Path:
        return self.write(f"{split}/{step}.jsonl", text(step, launch))

    def metrics(self, *steps: int, launch: int = 1, mode: str = "a") -> Path:
        return self.write("metrics.jsonl", "".join(metric(step, launch) for step in steps), mode)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "run")


def text(step: int, launch: int = 1) -> str:
    rows = [{"input": f"{n}+1", "output": f"launch {launch}\u2028", "score": 0.0, "step": step} for n in range(4)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def metric(step: int, launch: int = 1) -> str:
    return json.dumps({"step": step, "data": {"loss": step / launch}}) + "\n"


def turns(follow: Follow, count: int = 3) -> int:
    return sum(follow.turn() for _ in range(count))


def test_each_step_arrives_once_with_its_split_and_source(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(0, split="val")
    for step in (1, 2, 3):
        trainer.step(step)
    follow = watching()
    turns(follow)
    assert sorted(deck.current()) == [
        ("files", "eval", "val/0.jsonl"),
        *(("files", "train", f"rollout/{step}.jsonl") for step in (1, 2, 3)),
    ]
    assert turns(follow) == 0 and len(deck.dumps) == 4


def test_a_step_is_taken_at_once_when_the_next_one_exists(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    trainer.step(2)
    watching().turn()
    assert deck.steps() == [("files", 1)]


def test_a_torn_line_is_never_sent(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    whole = text(1)
    trainer.write("rollout/1.jsonl", whole[:-20])
    follow = watching()
    assert turns(follow) == 0
    trainer.write("rollout/1.jsonl", whole)
    turns(follow)
    assert [body.decode() for body in deck.bodies()] == [whole]


def test_a_last_line_that_is_whole_without_a_line_break_is_taken(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    trainer.write("rollout/1.jsonl", text(1).rstrip("\n"))
    turns(watching())
    assert deck.steps() == [("files", 1)]


def test_an_empty_file_waits_for_its_first_line(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.write("rollout/1.jsonl", "")
    follow = watching()
    assert turns(follow) == 0
    trainer.step(1)
    turns(follow)
    assert deck.steps() == [("files", 1)]


def test_a_later_step_of_the_launch_before_does_not_close_a_step_that_is_written_again(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    follow = watching()
    turns(follow)
    trainer.write("rollout/2.jsonl", text(2, launch=2)[:-20])
    assert turns(follow) == 0


def test_a_change_to_the_last_step_supersedes_it(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    trainer.step(2)
    follow = watching()
    turns(follow)
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.attempts() == ["files"]
    assert deck.current()["files", "train", "rollout/2.jsonl"].decode() == text(2, launch=2)


def test_a_step_written_again_after_a_later_one_begins_a_new_attempt(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2, 3, 4):
        trainer.step(step)
    follow = watching()
    turns(follow)
    for step in (3, 4, 5):
        trainer.step(step, launch=2)
        turns(follow)
    assert deck.steps()[4:] == [("files-2", 3), ("files-2", 4), ("files-2", 5)]
    trainer.step(4, launch=3)
    turns(follow)
    assert deck.steps()[-1] == ("files-3", 4)


def test_steps_of_two_launches_found_together_go_to_the_attempt_they_were_written_in(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    turns(watching())
    for step in (4, 5):  # nobody watches
        trainer.step(step)
    for step in (3, 4):
        trainer.step(step, launch=2)
    turns(watching())
    assert deck.steps()[3:] == [("files", 5), ("files-2", 3), ("files-2", 4)]


def test_a_step_that_a_killed_launch_left_torn_stays_in_its_attempt(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    trainer.write("rollout/4.jsonl", text(4)[:-20])
    follow = watching()
    turns(follow)
    trainer.step(2, launch=2)
    turns(follow)
    assert sorted(deck.steps()[3:]) == [("files", 4), ("files-2", 2)]


def test_a_file_that_was_touched_but_not_changed_is_not_sent_again(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2):
        trainer.step(step)
    follow = watching()
    turns(follow)
    trainer.step(1)
    assert turns(follow) == 0 and deck.attempts() == ["files"]


def test_metrics_travel_in_whole_lines_with_their_offsets(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    follow = watching()
    trainer.write("metrics.jsonl", metric(1) + metric(2)[:9])
    turns(follow)
    trainer.write("metrics.jsonl", metric(2)[9:] + metric(3), "a")
    turns(follow)
    first = metric(1).encode()
    assert deck.metrics() == [("files", 0, 0, first), ("files", 0, len(first), (metric(2) + metric(3)).encode())]


def test_metrics_that_start_anew_are_another_generation_and_another_attempt(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    trainer.metrics(1, 2, 3, 4)
    turns(follow)
    trainer.metrics(3, launch=2, mode="w")
    turns(follow)
    trainer.metrics(4, launch=2)
    turns(follow)
    assert [(attempt, generation, offset) for attempt, generation, offset, _ in deck.metrics()] == [
        ("files", 0, 0),
        ("files-2", 1, 0),
        ("files-2", 1, len(metric(3, 2))),
    ]


def test_metrics_that_start_anew_and_outgrow_what_was_sent_are_noticed(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    trainer.metrics(1, 2)
    turns(follow)
    trainer.metrics(2, 3, 4, 5, launch=7, mode="w")
    turns(follow)
    assert deck.metrics()[-1][1:3] == (1, 0)


def test_a_copy_with_the_same_beginning_goes_on_where_the_old_file_ended(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    path = trainer.metrics(1, 2)
    turns(follow)
    copy = trainer.write("copy.part", path.read_text() + metric(3))
    copy.replace(path)  # as rsync does
    turns(follow)
    assert deck.metrics()[-1] == ("files", 0, len(metric(1) + metric(2)), metric(3).encode())


def test_one_restart_seen_in_metrics_and_samples_is_one_attempt(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    for step in (1, 2, 3, 4):
        trainer.step(step)
        trainer.metrics(step)
    turns(follow)
    trainer.metrics(3, launch=2, mode="w")
    trainer.step(3, launch=2)
    turns(follow)
    assert deck.attempts() == ["files", "files-2"]


def test_the_last_step_before_a_restart_stays_in_its_attempt_when_metrics_tell_of_the_restart_first(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = watching()
    for step in (1, 2, 3):
        trainer.step(step)
        trainer.metrics(step)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 1000)
    turns(follow)
    trainer.metrics(2, launch=2, mode="w")
    turns(follow)
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0)
    turns(follow)
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.steps() == [("files", 1), ("files", 2), ("files", 3), ("files-2", 2)]


def test_a_restarted_watch_sends_nothing_twice(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    trainer.metrics(1)
    turns(watching())
    sent = len(deck.tokens)
    again = watching()
    assert turns(again) == 0 and len(deck.dumps) == 2 and len(deck.tokens) == sent + 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}', None])
def test_a_lost_or_damaged_memory_costs_re_sends_that_the_server_knows(
    deck: Deck, watching: Watching, trainer: Trainer, damage: bytes | None
) -> None:
    for step in (1, 2):
        trainer.step(step)
    follow = watching()
    turns(follow)
    follow.state.path.unlink() if damage is None else follow.state.path.write_bytes(damage)
    assert turns(watching()) == 2 and len(deck.dumps) == 2


@pytest.mark.parametrize("may_read", [True, False])
def test_a_lost_memory_after_a_restart_leaves_every_step_in_its_attempt(
    deck: Deck, watching: Watching, trainer: Trainer, may_read: bool
) -> None:
    deck.may_read = may_read
    follow = watching()
    for step, launch in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2)):
        trainer.step(step, launch)
        turns(follow)
    before = list(deck.dumps)
    follow.state.path.unlink()
    trainer.step(4, launch=2)
    turns(watching())
    assert deck.dumps[:-1] == before and deck.steps()[-1] == ("files-2", 4)


def test_a_kill_between_the_server_and_the_memory_opens_no_further_attempt(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    follow = watching()
    turns(follow)
    trainer.step(2, launch=2)
    with monkeypatch.context() as killed:
        killed.setattr(follow.follower, "sent", lambda piece: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            turns(follow)
    turns(watching())
    assert deck.steps()[3:] == [("files-2", 2)]


def test_while_the_server_is_down_nothing_is_lost_and_it_is_said_once(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(poll=0.001)
    loop.follows[None] = watching()
    deck.mode = "503"
    for step in (1, 2, 3):
        trainer.step(step)
        loop.turn()
    deck.mode = "ok"
    until(lambda: loop.turn() or len(deck.dumps) == 3)
    until(lambda: loop.turn() == 0 and len(deck.dumps) == 3)
    said = capsys.readouterr().err
    assert said.count("Nothing is lost") == 1 and said.count("The server answers again.") == 1


def test_a_refused_file_is_said_and_not_tried_again_until_it_changes(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = watching()
    trainer.step(1)
    trainer.step(2)
    deck.mode, deck.only = "400", "launch 1"
    turns(follow)
    assert "because of a test" in capsys.readouterr().err
    deck.mode = "ok"
    assert turns(follow) == 0
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.steps()[-1] == ("files", 2)


def test_a_folder_that_does_not_exist_yet_is_waited_for(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = watching()
    turns(follow)
    assert capsys.readouterr().err.count("Waiting for") == 1
    trainer.step(1)
    turns(follow)
    assert deck.steps() == [("files", 1)]


def test_a_nameless_folder_keeps_the_split_it_was_given_first(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(5, split="a")
    turns(watching())
    trainer.step(0, split="a")
    turns(watching())
    assert deck.steps("train") == [("files", 5), ("files", 0)]


def test_a_heartbeat_is_sent_only_while_files_change(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutdeck.commands.watch.HEARTBEAT_SECONDS", 0)
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
    follow.beat_at = time.monotonic()
    trainer.step(2)
    turns(follow, 5)
    monkeypatch.setattr("rolloutdeck.commands.watch.HEARTBEAT_SECONDS", 0)
    turns(follow, 5)
    assert deck.posted("/heartbeat/") == []


def test_a_file_over_eight_megabytes_travels_in_parts_and_goes_on_after_an_interruption(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    row = json.dumps({"input": "q", "output": "x" * 1000, "score": 0.0, "step": 1}) + "\n"
    trainer.write("rollout/1.jsonl", row * 17_000)
    follow = watching()
    follow.turn()
    put, spans = follow.target._put, []

    def cut_off(piece: Any, body: Any, span: str = "") -> Any:
        if len(spans) == 2:
            raise NotNow("cut")
        spans.append(span)
        return put(piece, body, span)

    follow.target._put = cut_off  # type: ignore[method-assign]
    with pytest.raises(NotNow):
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
    writer = [sys.executable, "-m", "tests.writer", str(run)]
    watching = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([*writer, "--steps", "8"], check=True, timeout=60)
        until(lambda: len(deck.shown("train")) == 8)
        watching.kill()
        watching.wait()
        watching = subprocess.Popen([*command, "--poll", "0.05"], env=environ, stderr=subprocess.DEVNULL)
        subprocess.run([*writer, "--first", "5", "--steps", "6", "--launch", "2"], check=True, timeout=60)
        files = {step: (run / "rollout" / f"{step}.jsonl").read_bytes() for step in range(1, 11)}
        until(lambda: deck.shown("train") == files)
        until(lambda: deck.shown("eval") == {step: (run / "val" / f"{step}.jsonl").read_bytes() for step in (4, 8)})
    finally:
        watching.kill()
        watching.wait()
    assert deck.attempts() == ["files", "files-2"]
    assert all(json.loads(line) for body in deck.bodies() for line in body.split(b"\n")[:-1])
    assert all(body.endswith(b"\n") for body in deck.bodies())
