"""The queue of a trainer's batches in memory: its limits, and what is counted as lost."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from rolloutdeck.client import start
from rolloutdeck.trainers.common import TokenSample, patching, session, token_selection
from tests.rolloutdeck.support.fake_server import Receiver
from tests.support.patching import patch_everywhere

ROOT = Path(__file__).parents[4]


class ExampleSession(session.TrainerSession):
    thread_name, log_name = "rolloutdeck-test", "trainer"
    overload_reason = "rows of steps that ended sooner than they could be written"


@pytest.fixture
def trainer_session(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExampleSession]:
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    example_session = ExampleSession(start.init(project="math", name="waits"))
    yield example_session
    example_session.run.finish(timeout=0)
    start._runs.clear()


def count_finished_jobs(trainer_session: ExampleSession, jobs: int, rows: int | None) -> int:
    """Submits jobs while the first one is running; returns how many of them were done."""
    released, done = threading.Event(), []
    for position in range(jobs):

        def job(place: int = position) -> None:
            released.wait(30)
            done.append(place)

        trainer_session.submit(job) if rows is None else trainer_session.submit(job, rows)
    released.set()
    trainer_session.flush(30)
    assert done == sorted(done)
    return len(done)


def test_many_small_batches_of_an_evaluation_are_all_queued(trainer_session: ExampleSession) -> None:
    assert count_finished_jobs(trainer_session, 200, rows=8) == 200


@pytest.mark.parametrize("rows", [None, session.MAX_WAITING_ROWS])
def test_only_a_few_complete_steps_are_queued_and_the_others_are_counted_as_lost(
    trainer_session: ExampleSession, rows: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert count_finished_jobs(trainer_session, 20, rows) in (
        session.MAX_WAITING_STEPS,
        session.MAX_WAITING_STEPS + 1,
    )  # one job may be running
    assert "leaves out rows of steps" in caplog.text


def count_lost_rows(trainer_session: ExampleSession) -> int:
    return sum(trainer_session.run._threads.spool.dropped.values())


def test_each_row_of_a_batch_that_was_not_built_in_time_is_counted(trainer_session: ExampleSession) -> None:
    released = threading.Event()

    def build() -> list[TokenSample]:
        released.wait(30)
        return []

    for step in range(20):
        trainer_session.submit_samples(build, session.MAX_WAITING_ROWS, step, "train")
    released.set()
    trainer_session.flush(30)
    assert count_lost_rows(trainer_session) // session.MAX_WAITING_ROWS in (16, 17)  # one job may be running


def build_two_samples(decode: Callable[[Sequence[int]], str]) -> list[TokenSample]:
    return [TokenSample([1], [2], decode), TokenSample([1], [3], decode)]


def refuse_ids(ids: Sequence[int]) -> str:
    raise ValueError("no such token")


@pytest.mark.parametrize("submit", ["submit_samples", "collect_samples"])
def test_samples_that_raise_are_counted_and_the_others_are_recorded(
    trainer_session: ExampleSession, connected_receiver: Receiver, submit: str, caplog: pytest.LogCaptureFixture
) -> None:
    submit_samples = getattr(trainer_session, submit)
    submit_samples(lambda: build_two_samples(str), 2, 7, "train")
    submit_samples(lambda: [][1], 5, 7, "train")
    submit_samples(lambda: build_two_samples(refuse_ids), 2, 7, "train")
    trainer_session.flush(30)
    trainer_session.run.finish(timeout=30)
    assert sum(len(body.splitlines()) for _, _, body in connected_receiver.dumps) == 2
    assert count_lost_rows(trainer_session) == 7
    assert "lost something in test_session.<lambda>: IndexError" in caplog.text, "the builder is named"


def fail_to_build() -> None:
    raise ValueError("no such token")


@pytest.mark.parametrize("job", [fail_to_build, partial(fail_to_build)])
def test_jobs_that_raise_are_counted_and_later_ones_are_done(
    trainer_session: ExampleSession, job: Callable[[], None]
) -> None:
    trainer_session.submit(job, 5)
    trainer_session.submit(job)
    assert count_finished_jobs(trainer_session, 1, rows=8) == 1
    assert trainer_session.run._threads.spool.dropped == {
        "trainer: rows that could not be built": 5,
        "trainer: steps that could not be recorded completely": 1,
    }


def test_a_job_that_is_no_step_is_counted_under_its_own_reason_or_not_at_all(trainer_session: ExampleSession) -> None:
    started, released = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        released.wait(30)

    trainer_session.submit(wait)
    started.wait(30)
    for _job in range(session.MAX_WAITING_STEPS):
        trainer_session.submit(wait)
    for reason in ("tokenizers that could not be recorded", ""):
        trainer_session.submit(fail_to_build, reason=reason)  # there are too many jobs
    released.set()
    trainer_session.flush(30)
    for reason in ("tokenizers that could not be recorded", ""):
        trainer_session.submit(fail_to_build, reason=reason)
    trainer_session.flush(30)
    assert trainer_session.run._threads.spool.dropped == {"trainer: tokenizers that could not be recorded": 2}


def test_rows_that_are_not_built_before_the_end_are_counted(
    trainer_session: ExampleSession, connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_JOB_SECONDS", 0.5)
    released = threading.Event()
    trainer_session.submit_samples(lambda: build_two_samples(str), 2, 6, "train")
    trainer_session.submit(lambda: None if released.wait(30) else None, 5)
    trainer_session.submit_samples(lambda: build_two_samples(str), 2, 7, "train")
    trainer_session.close("finished")
    released.set()
    trainer_session.end_jobs()
    assert trainer_session.run._threads.spool.dropped == {"trainer: rows that were not built before the end": 7}
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["6"]


def test_a_batch_that_cannot_be_copied_is_counted(trainer_session: ExampleSession) -> None:
    def log_batch() -> None:
        with trainer_session.count_capture_errors():
            raise TypeError("cannot pickle '_thread.lock' object")

    patching.catch_errors(log_batch)()
    assert trainer_session.run._threads.spool.dropped == {
        "trainer: batches that could not be copied from the trainer": 1
    }


def test_a_run_that_could_not_be_opened_is_not_opened_again(
    connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_choose_identity", lambda *_: 1 / 0)
    sessions = [session.get_session("k", lambda: ExampleSession(start.init(project="math"))) for _ in range(3)]
    assert sessions[0].run.is_disabled and len({id(found) for found in sessions}) == 1
    session._sessions.clear()


def test_equal_samples_of_two_deliveries_are_counted_for_each_step(
    trainer_session: ExampleSession, connected_receiver: Receiver
) -> None:
    for step in (7, 7, 8):
        trainer_session.collect_samples(lambda: build_two_samples(str)[:1] * 2, 2, step, "train")
        trainer_session.flush(30)
    trainer_session.collect_samples(lambda: build_two_samples(str), 2, 7, "train")
    trainer_session.flush(30)
    trainer_session.run.finish(timeout=30)
    deliveries = [[json.loads(line) for line in body.splitlines()] for _, _, body in connected_receiver.dumps]
    counts = [[row.get("earlier_equal_samples") for row in rows] for rows in deliveries]
    assert counts == [[None, None], [2, 2], [None, None], [4, None]]


def test_finished_jobs_free_their_place_in_the_queue(trainer_session: ExampleSession) -> None:
    assert [count_finished_jobs(trainer_session, 200, rows=8) for _ in range(4)] == [200] * 4


def test_a_process_waits_at_its_end_for_the_rows_of_its_last_step(connected_receiver: Receiver, tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from rolloutdeck.client import start\n"
        "from rolloutdeck.trainers.common.session import TrainerSession\n"
        "TrainerSession.thread_name = TrainerSession.log_name = TrainerSession.overload_reason = 'test'\n"
        "session = TrainerSession(start.init(project='math', name='ends'))\n"
        "def job():\n"
        "    time.sleep(0.5)\n"
        "    session.run.log_samples([{'prompt': '1+1=', 'response': '2'}], step=7)\n"
        "session.submit(job)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [query["step"] for _, query, _ in connected_receiver.dumps] == ["7"], done.stderr


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(
    trainer_session: ExampleSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    trainer_session.submit(lambda: released.wait(30) and None)
    monkeypatch.setattr(trainer_session, "pid", -1)
    start = time.monotonic()
    trainer_session.flush(20)
    assert time.monotonic() - start < 10
    released.set()


COLLECT_PROGRAM = """
from rolloutdeck.client import start
from rolloutdeck.trainers.common import TokenSample, TrainerSession

session = TrainerSession(start.init(project="math", name="collects"))
for number in range(3):
    samples = [TokenSample([1], [number], lambda ids: " ".join(map(str, ids)), row={"score": 0.5})]
    session.collect_samples(lambda samples=samples: samples, 1, step=7, split="train")
session.collect_samples(lambda: [][1], 1, step=7, split="train")
"""


def test_samples_that_arrive_one_by_one_are_one_delivery_even_if_the_process_ends_at_once(
    connected_receiver: Receiver,
) -> None:
    done = subprocess.run([sys.executable, "-c", COLLECT_PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    [(_, query, body)] = connected_receiver.dumps
    rows = [json.loads(line) for line in body.splitlines()]
    assert (query["step"], query["split"]) == ("7", "train"), done.stderr
    assert [(row["prompt"], row["response"], row["score"]) for row in rows] == [
        ("1", "0", 0.5), ("1", "1", 0.5), ("1", "2", 0.5),
    ]  # fmt: skip


def test_the_groups_with_tokens_are_counted_over_all_calls_of_a_step() -> None:
    budget = token_selection.TokenBudget(token_selection.TokenSelection(2))
    first, second = budget.select_rows(["a", "a"], "train", 1), budget.select_rows(["b", "c", "d"], "train", 1)
    assert first == [0, 1] and len(second) == 1
    assert budget.select_rows(["e"], "train", 1) == [] and budget.select_rows(["e"], "eval", 1) == [0]
