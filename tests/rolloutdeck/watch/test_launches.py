"""`watch` on a run that is launched again: each step and metric stays in the attempt it was written in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from rolloutdeck.watch import file_endings, follower, recover
from rolloutdeck.watch.upload import RetryLaterError
from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, build_metric_line, build_step_text, run_turns


def test_a_later_step_of_the_launch_before_does_not_close_a_step_that_is_written_again(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    trainer.write("rollout/2.jsonl", build_step_text(2, launch=2)[:-20])
    assert run_turns(watch) == 0


def test_a_step_written_again_after_a_later_one_begins_a_new_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    for step in (1, 2, 3, 4):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    for step in (3, 4, 5):
        trainer.write_step(step, launch=2)
        run_turns(watch)
    assert deck.steps()[4:] == [("files-2", 3), ("files-2", 4), ("files-2", 5)]
    trainer.write_step(4, launch=3)
    run_turns(watch)
    assert deck.steps()[-1] == ("files-3", 4)


def test_steps_of_two_launches_found_together_go_to_the_attempt_they_were_written_in(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    run_turns(start_watch())
    for step in (4, 5):  # while no watch runs
        trainer.write_step(step)
    for step in (3, 4):
        trainer.write_step(step, launch=2)
    run_turns(start_watch())
    assert deck.steps()[3:] == [("files", 5), ("files-2", 3), ("files-2", 4)]


def test_a_step_that_a_killed_launch_left_truncated_stays_in_its_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    trainer.write("rollout/4.jsonl", build_step_text(4)[:-20])
    watch = start_watch()
    run_turns(watch)
    trainer.write_step(2, launch=2)
    run_turns(watch)
    assert sorted(deck.steps()[3:]) == [("files", 4), ("files-2", 2)]


def test_rewritten_metrics_are_another_generation_and_another_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    trainer.write_metrics(1, 2, 3, 4)
    run_turns(watch)
    trainer.write_metrics(3, launch=2, mode="w")
    run_turns(watch)
    trainer.write_metrics(4, launch=2)
    run_turns(watch)
    assert [(attempt, generation, offset) for attempt, generation, offset, _ in deck.metrics()] == [
        ("files", 0, 0),
        ("files-2", 1, 0),
        ("files-2", 1, len(build_metric_line(3, 2))),
    ]


def test_rewritten_metrics_that_are_longer_than_what_was_sent_are_noticed(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    trainer.write_metrics(1, 2)
    run_turns(watch)
    trainer.write_metrics(2, 3, 4, 5, launch=7, mode="w")
    run_turns(watch)
    assert deck.metrics()[-1][1:3] == (1, 0)


def test_a_copy_with_the_same_beginning_continues_where_the_old_file_ended(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    path = trainer.write_metrics(1, 2)
    run_turns(watch)
    copy = trainer.write("copy.part", path.read_text() + build_metric_line(3))
    copy.replace(path)  # as rsync does
    run_turns(watch)
    assert deck.metrics()[-1] == (
        "files",
        0,
        len(build_metric_line(1) + build_metric_line(2)),
        build_metric_line(3).encode(),
    )


def test_one_restart_seen_in_metrics_and_samples_is_one_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    for step in (1, 2, 3, 4):
        trainer.write_step(step)
        trainer.write_metrics(step)
    run_turns(watch)
    trainer.write_metrics(3, launch=2, mode="w")
    trainer.write_step(3, launch=2)
    run_turns(watch)
    assert deck.attempts() == ["files", "files-2"]


def test_the_last_step_before_a_restart_stays_in_its_attempt_if_metrics_show_the_restart_first(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = start_watch()
    for step in (1, 2, 3):
        trainer.write_step(step)
        trainer.write_metrics(step)
    monkeypatch.setattr(follower, "QUIET_SECONDS", 1000)
    run_turns(watch)
    trainer.write_metrics(2, launch=2, mode="w")
    run_turns(watch)
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0)
    run_turns(watch)
    trainer.write_step(2, launch=2)
    run_turns(watch)
    assert deck.steps() == [("files", 1), ("files", 2), ("files", 3), ("files-2", 2)]


def test_a_lost_state_is_recovered_even_if_the_server_fails_meanwhile(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = start_watch()
    for step in (1, 2, 3, 4):
        trainer.write_step(step)
    run_turns(watch)
    for step in (2, 3):
        trainer.write_step(step, launch=2)
        run_turns(watch)
    before = deck.steps()
    assert before[4:] == [("files-2", 2), ("files-2", 3)]
    shutil.rmtree(tmp_path / "home")
    watch = start_watch()
    has_part, requests = watch.target.has_part, []

    def fail_twice(part: Any) -> bool:
        requests.append(part)
        if len(requests) in (2, 5):
            raise RetryLaterError("the server responded with 503")
        return has_part(part)

    hashed: list[str] = []

    def record_and_hash(file: BinaryIO) -> Any:
        hashed.append(file.name)
        return file_endings.hash_open_file(file)

    watch.target.has_part = fail_twice  # type: ignore[method-assign]
    monkeypatch.setattr(recover, "hash_open_file", record_and_hash)
    for _ in range(2):
        with pytest.raises(RetryLaterError):
            watch.send_ready()
    run_turns(watch)
    assert deck.steps() == before and len(hashed) == len(set(hashed)) == 4
    trainer.write_step(4, launch=2)
    run_turns(watch)
    assert deck.steps() == [*before, ("files-2", 4)]
