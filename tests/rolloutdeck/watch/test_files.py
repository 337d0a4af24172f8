"""`watch` on files that are written as trainers write them: torn lines, whole-file rewrites, metrics that grow."""

from __future__ import annotations

import json
import os

import pytest

from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import Trainer, Watching, metric, text, turns


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


def test_the_step_in_the_rows_counts_not_the_number_of_a_table(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"q{row}", "completion": "2", "reward": 1.0, "step": 7} for row in range(3)]
    trainer.write("0000.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    turns(watching())
    assert [query.get("step") for _, query, _ in deck.dumps] == [None]
    assert "sent 1 file with steps in the rows." in capsys.readouterr().err


def test_a_step_is_taken_at_once_when_the_next_one_exists(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    trainer.step(2)
    watching().send_ready()
    assert deck.steps() == [("files", 1)]


def test_a_torn_line_is_never_sent(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    full = text(1)
    trainer.write("rollout/1.jsonl", full[:-20])
    follow = watching()
    assert turns(follow) == 0
    trainer.write("rollout/1.jsonl", full)
    turns(follow)
    assert [body.decode() for body in deck.bodies()] == [full]


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


def test_a_change_to_the_last_step_supersedes_it(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    trainer.step(2)
    follow = watching()
    turns(follow)
    trainer.step(2, launch=2)
    turns(follow)
    assert deck.attempts() == ["files"]
    assert deck.current()["files", "train", "rollout/2.jsonl"].decode() == text(2, launch=2)


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


def test_a_name_that_is_not_utf8_does_not_stop_the_others(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    trainer.step(1)
    odd = trainer.folder / os.fsdecode(b"x\xff")
    odd.mkdir()
    (odd / "2.jsonl").write_text(text(2))
    turns(watching())
    assert {source for *_, source in deck.current()} == {"rollout/1.jsonl", "x\\xff/2.jsonl"}
