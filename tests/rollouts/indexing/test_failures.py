"""Dumps that cannot be read or stored, and workers that lose a dump: tries, claims and outages."""

from __future__ import annotations

import errno
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, transaction
from django.utils import timezone

from rollouts.errors import StorageUnavailableError, UnreadableDumpError
from rollouts.indexing import indexer, publishing
from rollouts.maintenance import take_overdue_dumps
from rollouts.models import Dump, Run, Sample, Segment
from rollouts.samples import bodies
from rollouts.storage import raw_dumps
from tests.rollouts.support.push import generation, lines, list_samples, push
from tests.support.stored import list_stored, raw_path

pytestmark = pytest.mark.django_db


def test_a_dump_without_any_step_fails_in_one_sentence(run: Run) -> None:
    dump = push(run, lines({"prompt": "q", "response": "a"}), None)
    with pytest.raises(UnreadableDumpError):
        indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, Sample.objects.count()) == (Dump.State.FAILED, 0)
    assert "which step" in dump.message


def test_a_dump_that_cannot_be_read_fails_once_with_a_reason(run: Run) -> None:
    dump = push(run, b"\x80\x04 a pickle")
    with pytest.raises(UnreadableDumpError):
        indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == Dump.State.FAILED
    assert "in no format this server reads" in dump.message
    indexer.index_dump(dump.pk)  # nothing to claim


def test_missing_bytes_are_tried_again_later_and_fail_after_five_tries(run: Run) -> None:
    dump = push(run, lines(generation()))
    raw_path(run.project_id, dump.sha256).unlink()
    for state in [Dump.State.RECEIVED] * (Dump.MAX_TRIES - 1) + [Dump.State.FAILED]:
        with pytest.raises(StorageUnavailableError):
            indexer.index_dump(dump.pk)
        dump.refresh_from_db()
        assert dump.state == state
    assert dump.due_at > timezone.now() + timedelta(seconds=30)


@pytest.mark.parametrize("error", [DataError("value too long"), FileNotFoundError("x")])
def test_an_error_that_is_no_outage_fails_the_dump_after_five_tries(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    dump = push(run, lines(generation()))

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(indexer, "index_with_rereads", fail)
    for _ in range(Dump.MAX_TRIES):
        with pytest.raises(type(error)):
            indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == Dump.State.FAILED and str(error) in dump.message


def test_a_dump_waits_a_day_for_a_storage_that_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = push(run, lines(generation()))

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(raw_dumps.access, "fetch_file", refuse)
    for hours, state in (*[(0, Dump.State.RECEIVED)] * (2 * Dump.MAX_TRIES), (25, Dump.State.FAILED)):
        Dump.objects.update(received_at=timezone.now() - timedelta(hours=hours))
        with pytest.raises(StorageUnavailableError):
            indexer.index_dump(dump.pk)
        dump.refresh_from_db()
        assert dump.state == state and dump.due_at < timezone.now() + Dump.MAX_DELAY
    assert take_overdue_dumps() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("seconds", [0, 7, 31])
def test_a_dump_waits_for_the_database_and_not_for_the_end_of_its_claim(
    run: Run, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """The database is away for some seconds."""
    dump, slept, store = push(run, lines(generation())), [0], indexer.store_failure

    def fail(*_: Any) -> None:
        raise OperationalError("server closed the connection unexpectedly")

    def store_failure(*args: Any) -> None:
        if slept[0] < seconds:
            fail()
        store(*args)

    monkeypatch.setattr(indexer, "index_with_rereads", fail)
    monkeypatch.setattr(indexer, "store_failure", store_failure)
    monkeypatch.setattr(indexer, "sleep", lambda pause: slept.append(slept.pop() + pause))
    with pytest.raises(OperationalError):
        indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, slept) == (Dump.State.RECEIVED, [seconds])
    assert "server closed the connection" in dump.message


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to lose")
def test_a_worker_whose_connection_ended_gives_the_dump_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_connection(*_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    dump = push(run, lines(generation()))
    monkeypatch.setattr(indexer, "DATABASE_PAUSES", (0, 0))
    monkeypatch.setattr(indexer, "index_with_rereads", end_connection)
    with pytest.raises(OperationalError):
        indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == Dump.State.RECEIVED


def test_two_workers_index_a_dump_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = push(run, lines(generation()))
    claimed = []
    index_with_rereads = indexer.index_with_rereads
    monkeypatch.setattr(
        indexer,
        "index_with_rereads",
        lambda dump, _: (claimed.append(dump.pk), indexer.index_dump(dump.pk), index_with_rereads(dump)),
    )
    indexer.index_dump(dump.pk)
    assert claimed == [dump.pk]
    assert Sample.objects.count() == 1


def test_a_worker_that_lost_its_claim_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = push(run, lines(generation()))
    index_with_rereads = indexer.index_with_rereads

    def index_after_takeover(claimed: Dump, *_: Any) -> None:
        Dump.objects.filter(pk=dump.pk).update(claimed_at=timezone.now() - 2 * Dump.LEASE)
        monkeypatch.setattr(indexer, "index_with_rereads", index_with_rereads)
        indexer.index_dump(dump.pk)
        index_with_rereads(claimed)

    monkeypatch.setattr(indexer, "index_with_rereads", index_after_takeover)
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, dump.tries, Sample.objects.count(), Segment.objects.count()) == (Dump.State.INDEXED, 2, 1, 1)
    assert [path.name for path in list_stored("bodies/")] == [dump.segment.path.rpartition("/")[2]]


def test_a_worker_that_was_overtaken_leaves_the_claim_to_the_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = push(run, lines(generation()))
    index_with_rereads = indexer.index_with_rereads

    def index_after_takeover(claimed: Dump, *_: Any) -> None:
        Dump.objects.filter(pk=dump.pk).update(claimed_at=timezone.now() - 2 * Dump.LEASE)
        assert Dump.objects.get(pk=dump.pk).claim()
        index_with_rereads(claimed)

    monkeypatch.setattr(indexer, "index_with_rereads", index_after_takeover)
    indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert (dump.state, dump.tries, Sample.objects.count()) == (Dump.State.INDEXING, 2, 0)


@pytest.mark.django_db(transaction=True)
def test_an_error_after_the_commit_deletes_no_body(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_after_commit(*args: object, **kwargs: object) -> None:
        transaction.on_commit(lambda: 1 / 0)

    monkeypatch.setattr(publishing, "notify_run_changed", fail_after_commit)
    dump = push(run, lines(generation()))
    with pytest.raises(ZeroDivisionError):
        indexer.index_dump(dump.pk)
    dump.refresh_from_db()
    assert dump.state == Dump.State.INDEXED
    assert [body.prompt for body in bodies.load_bodies(list_samples(run)).values()]
