"""How much of a trainer's batches waits in memory for our thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rolloutdeck import opening
from rolloutdeck.trainers import hooks, session
from tests.rolloutdeck.receiver import Receiver


class Held(session.Session):
    thread, who, late = "rolloutdeck-test", "trainer", "rows of steps that ended sooner than they could be written"


@pytest.fixture
def held(at_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    monkeypatch.setattr(hooks, "voice", hooks.Voice())
    one = Held(opening.init(project="math", name="waits"))
    yield one
    one.run.finish(timeout=0)
    opening._runs.clear()


def made(held: Held, jobs: int, rows: int | None) -> int:
    """How many of the jobs are done, of those that are handed over while the first is."""
    free, done = threading.Event(), []
    for place in range(jobs):

        def job(place: int = place) -> None:
            free.wait(30)
            done.append(place)

        held.later(job) if rows is None else held.later(job, rows)
    free.set()
    held.flush(30)
    assert done == sorted(done)
    return len(done)


def test_the_many_small_batches_of_an_evaluation_all_wait(held: Held) -> None:
    assert made(held, 200, rows=8) == 200


@pytest.mark.parametrize("rows", [None, session.MOST_ROWS])
def test_of_whole_steps_only_a_few_wait_and_the_others_are_counted_as_lost(
    held: Held, rows: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert made(held, 20, rows) in (session.MOST_WAITING, session.MOST_WAITING + 1)  # one may be in work
    assert "leaves out rows of steps" in caplog.text


def test_what_was_made_leaves_room_for_more(held: Held) -> None:
    assert [made(held, 200, rows=8) for _ in range(4)] == [200] * 4
