"""A `watch` that is started again: with its state file, without it, or after a kill before the file was written."""

from __future__ import annotations

import pytest

from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import StartWatch, Trainer, build_metric_line, run_turns


def test_a_restarted_watch_sends_nothing_twice(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    trainer.write_step(1)
    trainer.write_metrics(1)
    run_turns(start_watch())
    sent = len(deck.tokens)
    next_watch = start_watch()
    assert run_turns(next_watch) == 0 and len(deck.dumps) == 2 and len(deck.tokens) == sent + 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}', None])
def test_after_a_lost_or_damaged_state_all_files_are_sent_again_and_stored_once(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, damage: bytes | None
) -> None:
    for step in (1, 2):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    watch.state.path.unlink() if damage is None else watch.state.path.write_bytes(damage)
    assert run_turns(start_watch()) == 2 and len(deck.dumps) == 2


@pytest.mark.parametrize("may_read", [True, False])
def test_a_lost_state_after_a_restart_leaves_every_step_in_its_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, may_read: bool
) -> None:
    deck.may_read = may_read
    watch = start_watch()
    for step, launch in ((1, 1), (2, 1), (3, 1), (2, 2), (3, 2)):
        trainer.write_step(step, launch)
        run_turns(watch)
    before = list(deck.dumps)
    watch.state.path.unlink()
    trainer.write_step(4, launch=2)
    run_turns(start_watch())
    assert deck.dumps[:-1] == before and deck.steps()[-1] == ("files-2", 4)


def test_after_a_lost_state_a_growing_file_continues_in_its_attempt_and_generation(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    trainer.write_metrics(1, 2, 3)
    run_turns(watch)
    trainer.write_metrics(2, launch=2, mode="w")
    run_turns(watch)
    trainer.write_metrics(3, launch=2)
    run_turns(watch)
    assert len(deck.metrics()) == 3
    watch.state.path.unlink()
    watch = start_watch()
    assert run_turns(watch) == 0 and len(deck.metrics()) == 3
    trainer.write_metrics(4, launch=2)
    run_turns(watch)
    assert deck.metrics()[3] == (
        "files-2",
        1,
        len(build_metric_line(2, 2) + build_metric_line(3, 2)),
        build_metric_line(4, 2).encode(),
    )
    watch.state.path.unlink()
    trainer.write_metrics(5, launch=3, mode="w")  # bytes that the server does not have: a generation of their own
    run_turns(start_watch())
    assert deck.metrics()[4:] == [("files-2", 4, 0, build_metric_line(5, 3).encode())]


def test_after_a_lost_state_the_newest_of_equal_generations_continues(
    deck: Deck, start_watch: StartWatch, trainer: Trainer
) -> None:
    watch = start_watch()
    for launch in (1, 2, 1):
        trainer.write_metrics(1, launch=launch, mode="w")
        run_turns(watch)
    watch.state.path.unlink()
    trainer.write_metrics(2)
    run_turns(start_watch())
    generations = [(attempt, generation) for attempt, generation, *_ in deck.metrics()]
    assert generations == [("files", 0), ("files", 1), ("files", 2), ("files", 2)]
    assert deck.metrics()[-1][2:] == (len(build_metric_line(1)), build_metric_line(2).encode())


def test_another_server_at_the_same_address_gets_all_files(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = start_watch()
    trainer.write_metrics(1)
    for step, launch in ((1, 1), (2, 1), (1, 2)):
        trainer.write_step(step, launch)
        run_turns(watch)
    assert deck.attempts() == ["files", "files-2"]
    deck.dumps.clear()
    deck.created = True
    run_turns(start_watch())
    assert sorted(deck.steps()) == [("files", 1), ("files", 2)] and len(deck.metrics()) == 1
    assert "grpo: the server may not have what was sent before. Everything is sent again." in capsys.readouterr().err
    deck.created = False
    assert run_turns(start_watch()) == 0


def test_a_server_that_was_restored_gets_what_it_lacks(deck: Deck, start_watch: StartWatch, trainer: Trainer) -> None:
    watch = start_watch()
    for step in (1, 2, 3):
        trainer.write_step(step)
        trainer.write_metrics(step)
        run_turns(watch)
    sent = list(deck.dumps)
    del deck.dumps[2:]  # the backup is older
    deck.server_id = "restored"
    run_turns(start_watch())
    assert sorted(deck.steps()) == [("files", 1), ("files", 2), ("files", 3)]
    assert b"".join(body for *_, body in deck.metrics()) == b"".join(
        build_metric_line(step).encode() for step in (1, 2, 3)
    )
    assert len(sent) == 6
    assert run_turns(start_watch()) == 0


def test_a_kill_after_an_upload_and_before_the_state_is_saved_opens_no_further_attempt(
    deck: Deck, start_watch: StartWatch, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        trainer.write_step(step)
    watch = start_watch()
    run_turns(watch)
    trainer.write_step(2, launch=2)
    with monkeypatch.context() as killed:
        killed.setattr(watch.follower, "mark_sent", lambda piece: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_turns(watch)
    run_turns(start_watch())
    assert deck.steps()[3:] == [("files-2", 2)]
