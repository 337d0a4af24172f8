"""`watch` on files that are written as trainers write them: truncated lines, rewritten files, and metrics that grow."""

from __future__ import annotations

import json
import os

import pytest

from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, build_metric_line, build_step_text, run_turns


def test_each_step_arrives_once_with_its_split_and_source(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trainer.write_step(0, split="val")
    for step in (1, 2, 3):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    assert sorted(deck.latest_files()) == [
        ("files", "eval", "val/0.jsonl"),
        *(("files", "train", f"rollout/{step}.jsonl") for step in (1, 2, 3)),
    ]
    assert run_turns(watch) == 0 and len(deck.dumps) == 4


def test_the_step_in_the_rows_counts_and_not_the_number_in_the_name_of_a_table(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"q{row}", "completion": "2", "reward": 1.0, "step": 7} for row in range(3)]
    trainer.write("0000.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    run_turns(start_watch())
    assert [query.get("step") for _, query, _ in deck.dumps] == [None]
    assert "sent 1 file with steps in the rows." in capsys.readouterr().err


def test_a_step_is_sent_at_once_when_the_next_one_exists(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    trainer.write_step(1)
    trainer.write_step(2)
    start_watch().send_ready()
    assert deck.steps() == [("files", 1)]


def test_a_truncated_line_is_never_sent(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    full = build_step_text(1)
    trainer.write("rollout/1.jsonl", full[:-20])
    watch = start_watch()
    assert run_turns(watch) == 0
    trainer.write("rollout/1.jsonl", full)
    run_turns(watch)
    assert [body.decode() for body in deck.bodies()] == [full]


def test_a_complete_last_line_without_a_line_break_is_sent(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trainer.write("rollout/1.jsonl", build_step_text(1).rstrip("\n"))
    run_turns(start_watch())
    assert deck.steps() == [("files", 1)]


def test_an_empty_file_waits_for_its_first_line(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    trainer.write("rollout/1.jsonl", "")
    watch = start_watch()
    assert run_turns(watch) == 0
    trainer.write_step(1)
    run_turns(watch)
    assert deck.steps() == [("files", 1)]


def test_a_change_to_the_last_step_supersedes_it(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    trainer.write_step(1)
    trainer.write_step(2)
    watch = start_watch()
    run_turns(watch)
    trainer.write_step(2, launch=2)
    run_turns(watch)
    assert deck.attempts() == ["files"]
    assert deck.latest_files()["files", "train", "rollout/2.jsonl"].decode() == build_step_text(2, launch=2)


def test_a_file_that_was_touched_but_not_changed_is_not_sent_again(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    for step in (1, 2):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    trainer.write_step(1)
    assert run_turns(watch) == 0 and deck.attempts() == ["files"]


def test_metrics_are_sent_in_whole_lines_with_their_offsets(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    trainer.write("metrics.jsonl", build_metric_line(1) + build_metric_line(2)[:9])
    run_turns(watch)
    trainer.write("metrics.jsonl", build_metric_line(2)[9:] + build_metric_line(3), "a")
    run_turns(watch)
    first = build_metric_line(1).encode()
    assert deck.metrics() == [
        ("files", 0, 0, first),
        ("files", 0, len(first), (build_metric_line(2) + build_metric_line(3)).encode()),
    ]


def test_a_folder_that_does_not_exist_yet_is_waited_for(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = start_watch()
    run_turns(watch)
    assert capsys.readouterr().err.count("Waiting for") == 1
    trainer.write_step(1)
    run_turns(watch)
    assert deck.steps() == [("files", 1)]


def test_a_folder_whose_name_says_no_split_keeps_its_first_split(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trainer.write_step(5, split="a")
    run_turns(start_watch())
    trainer.write_step(0, split="a")
    run_turns(start_watch())
    assert deck.steps("train") == [("files", 5), ("files", 0)]


def test_a_name_that_is_not_utf8_does_not_stop_the_others(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    trainer.write_step(1)
    folder = trainer.folder / os.fsdecode(b"x\xff")
    folder.mkdir()
    (folder / "2.jsonl").write_text(build_step_text(2))
    run_turns(start_watch())
    assert {source for *_, source in deck.latest_files()} == {"rollout/1.jsonl", "x\\xff/2.jsonl"}
