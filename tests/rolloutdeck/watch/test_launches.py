"""`watch` on a run that is launched again: each step and metric stays in the attempt it was written in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from rolloutdeck.watch import file_endings, follower, recover
from rolloutdeck.watch.upload import RetryLaterError
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import Trainer, Watching, metric, text, turns


def test_a_later_step_of_the_launch_before_does_not_close_a_step_that_is_written_again(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    follow = watching()
    turns(follow)
    trainer.write("rollout/2.jsonl", text(2, launch=2)[:-20])
    assert turns(follow) == 0


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
    monkeypatch.setattr(follower, "QUIET_SECONDS", 1000)
    turns(follow)
    trainer.metrics(2, launch=2, mode="w")
    turns(follow)
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0)
    turns(follow)
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.steps() == [("files", 1), ("files", 2), ("files", 3), ("files-2", 2)]


def test_a_lost_state_is_recovered_even_if_the_server_fails_meanwhile(
    deck: Deck, watching: Watching, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = watching()
    for step in (1, 2, 3, 4):
        trainer.step(step)
    turns(follow)
    for step in (2, 3):
        trainer.step(step, launch=2)
        turns(follow)
    before = deck.steps()
    assert before[4:] == [("files-2", 2), ("files-2", 3)]
    shutil.rmtree(tmp_path / "home")
    follow = watching()
    has_part, requests = follow.target.has_part, []

    def fail_twice(part: Any) -> bool:
        requests.append(part)
        if len(requests) in (2, 5):
            raise RetryLaterError("the server responded with 503")
        return has_part(part)

    hashed: list[str] = []

    def hash_file(file: BinaryIO) -> Any:
        hashed.append(file.name)
        return file_endings.hash_open_file(file)

    follow.target.has_part = fail_twice  # type: ignore[method-assign]
    monkeypatch.setattr(recover, "hash_open_file", hash_file)
    for _ in range(2):
        with pytest.raises(RetryLaterError):
            follow.send_ready()
    turns(follow)
    assert deck.steps() == before and len(hashed) == len(set(hashed)) == 4
    trainer.step(4, launch=2)
    turns(follow)
    assert deck.steps() == [*before, ("files-2", 4)]
