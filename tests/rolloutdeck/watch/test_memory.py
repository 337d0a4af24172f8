"""A `watch` that is started again, with its memory, without it, or killed before it was written."""

from __future__ import annotations

import pytest

from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import Trainer, Watching, metric, turns


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


def test_a_lost_memory_continues_a_growing_file_in_its_attempt_and_generation(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    trainer.metrics(1, 2, 3)
    turns(follow)
    trainer.metrics(2, launch=2, mode="w")
    turns(follow)
    trainer.metrics(3, launch=2)
    turns(follow)
    assert len(deck.metrics()) == 3
    follow.state.path.unlink()
    follow = watching()
    assert turns(follow) == 0 and len(deck.metrics()) == 3
    trainer.metrics(4, launch=2)
    turns(follow)
    assert deck.metrics()[3] == ("files-2", 1, len(metric(2, 2) + metric(3, 2)), metric(4, 2).encode())
    follow.state.path.unlink()
    trainer.metrics(5, launch=3, mode="w")  # bytes that the server does not have: a generation of their own
    turns(watching())
    assert deck.metrics()[4:] == [("files-2", 4, 0, metric(5, 3).encode())]


def test_a_lost_memory_continues_the_newest_of_equal_generations(
    deck: Deck, watching: Watching, trainer: Trainer
) -> None:
    follow = watching()
    for launch in (1, 2, 1):
        trainer.metrics(1, launch=launch, mode="w")
        turns(follow)
    follow.state.path.unlink()
    trainer.metrics(2)
    turns(watching())
    generations = [(attempt, generation) for attempt, generation, *_ in deck.metrics()]
    assert generations == [("files", 0), ("files", 1), ("files", 2), ("files", 2)]
    assert deck.metrics()[-1][2:] == (len(metric(1)), metric(2).encode())


def test_another_server_at_the_same_address_gets_everything(
    deck: Deck, watching: Watching, trainer: Trainer, capsys: pytest.CaptureFixture[str]
) -> None:
    follow = watching()
    trainer.metrics(1)
    for step, launch in ((1, 1), (2, 1), (1, 2)):
        trainer.step(step, launch)
        turns(follow)
    assert deck.attempts() == ["files", "files-2"]
    deck.dumps.clear()
    deck.created = True
    turns(watching())
    assert sorted(deck.steps()) == [("files", 1), ("files", 2)] and len(deck.metrics()) == 1
    assert "grpo: the server may not have what was sent before. Everything is sent again." in capsys.readouterr().err
    deck.created = False
    assert turns(watching()) == 0


def test_a_server_that_was_restored_gets_what_it_lacks(deck: Deck, watching: Watching, trainer: Trainer) -> None:
    follow = watching()
    for step in (1, 2, 3):
        trainer.step(step)
        trainer.metrics(step)
        turns(follow)
    sent = list(deck.dumps)
    del deck.dumps[2:]  # the backup is older
    deck.server_id = "restored"
    turns(watching())
    assert sorted(deck.steps()) == [("files", 1), ("files", 2), ("files", 3)]
    assert b"".join(body for *_, body in deck.metrics()) == b"".join(metric(step).encode() for step in (1, 2, 3))
    assert len(sent) == 6
    assert turns(watching()) == 0


def test_a_kill_between_the_server_and_the_memory_opens_no_further_attempt(
    deck: Deck, watching: Watching, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        trainer.step(step)
    follow = watching()
    turns(follow)
    trainer.step(2, launch=2)
    with monkeypatch.context() as killed:
        killed.setattr(follow.follower, "mark_sent", lambda piece: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            turns(follow)
    turns(watching())
    assert deck.steps()[3:] == [("files-2", 2)]
