"""A `watch` that is started again, with its memory, without it, or killed before it was written."""

from __future__ import annotations

import pytest

from tests.rolloutdeck.support.deck import Deck
from tests.rolloutdeck.watch.trainer import Trainer, Watching, turns


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
        killed.setattr(follow.follower, "mark_sent", lambda piece: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            turns(follow)
    turns(watching())
    assert deck.steps()[3:] == [("files-2", 2)]
