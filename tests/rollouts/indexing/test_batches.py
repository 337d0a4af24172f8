"""Small waiting dumps of a step are indexed together with the first one."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from django.db import DataError, OperationalError

from rollouts.errors import RolloutError
from rollouts.indexing import indexer, publishing, reconcile
from rollouts.models import Dump, DuplicateSource, Run, Sample, Step
from rollouts.storage import raw_dumps
from tests.rollouts.support.push import generation, index_file, index_one_dump, lines, list_samples, push
from tests.support import builders
from tests.support.stored import list_stored

pytestmark = pytest.mark.django_db


def push_samples(run: Run, count: int, **header: Any) -> list[Dump]:
    """Pushes dumps of one sample each; each prompt has four responses."""
    return [
        push(run, lines(generation(f"q{n // 4}", f"answer {n}", n % 2)), source=f"call:{n}", **header)
        for n in range(count)
    ]


def list_states(dumps: list[Dump]) -> list[tuple[str, int]]:
    for dump in dumps:
        dump.refresh_from_db()
    return [(dump.state, dump.tries) for dump in dumps]


def read_results(run: Run) -> tuple[Any, ...]:
    samples = Sample.objects.filter(step__run=run).order_by("tail")
    sources = DuplicateSource.objects.filter(dump__run=run).order_by("dump__source")
    steps = Step.objects.filter(run=run).values_list("samples", "groups", "score_mean", "facets", "histogram")
    return (
        list(samples.values_list("tail", "dump__source", "ordinal", "visible", "score", "group", "facets")),
        list(sources.values_list("dump__source", "ordinal")),
        list(steps),
        list(run.dumps.order_by("received_at").values_list("state", "rows")),
    )


def test_a_step_of_many_dumps_is_merged_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps, merged = push_samples(run, 30), []
    merge = reconcile.merge_dumps
    monkeypatch.setattr(reconcile, "merge_dumps", lambda *args: merged.append(len(args[1])) or merge(*args))
    version = Run.objects.get(pk=run.pk).version
    for dump in dumps:
        indexer.index_dump(dump.pk)
    assert merged == [30]
    assert list_states(dumps) == [(Dump.State.INDEXED, 1)] * 30
    assert len(list_samples(run)) == Step.objects.get().samples == 30
    assert Run.objects.get(pk=run.pk).version == version + 1


def test_a_batch_gives_the_same_samples_as_single_dumps(run: Run) -> None:
    def push_versions(name: str) -> list[Dump]:
        target = builders.run(run.project, name)
        repeated_rows = [generation(f"q{n // 4}", f"answer {n}", 1.0, acc=n) for n in (0, 5)]
        repeated = [push(target, lines(row), source=f"more:{row['acc']}") for row in repeated_rows]
        older = push(target, lines(generation("q0", "older", 0.5)), source="call:1")
        return [*push_samples(target, 6), *repeated, older]

    batch_dumps, single_dumps = push_versions("together"), push_versions("alone")
    indexer.index_dump(batch_dumps[3].pk)
    for dump in reversed(single_dumps):
        index_one_dump(dump)
    assert read_results(batch_dumps[0].run) == read_results(single_dumps[0].run)


def test_a_reindex_of_a_step_keeps_one_file_for_each_dump(run: Run) -> None:
    dumps = push_samples(run, 5)
    indexer.index_dump(dumps[0].pk)
    ids, before = {sample.pk for sample in list_samples(run)}, read_results(run)
    indexer.reindex_run(run)
    indexer.index_dump(dumps[4].pk)
    assert {sample.pk for sample in list_samples(run)} == ids and read_results(run) == before
    assert run.segments.count() == 5


def test_a_dump_that_cannot_be_read_does_not_fail_the_others(run: Run) -> None:
    good, broken = push_samples(run, 3), push(run, b"torn", source="torn.jsonl")
    metrics = push(run, b'{"step": 1, "data": {"loss": 0.5}}\n', source="metrics.jsonl", format="verl-metrics")
    indexer.index_dump(good[1].pk)
    assert list_states(good) == [(Dump.State.INDEXED, 1)] * 3
    broken.refresh_from_db()
    assert broken.state == Dump.State.FAILED and "in no format" in broken.message
    metrics.refresh_from_db()
    assert (metrics.state, metrics.rows) == (Dump.State.INDEXED, 1)


def test_chunks_large_dumps_other_steps_and_second_tries_are_indexed_separately(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "SMALL_DUMP_BYTES", 500)
    first = push_samples(run, 1)[0]
    others = [
        push(run, lines(generation("a", "1")), source="chunks", offset=0),
        push(run, lines(generation("b", "x" * 500)), source="large"),
        push(run, lines(generation("c", "1")), 2, source="other step"),
        push(run, lines(generation("c", "1")), source="other split", split="eval"),
        push(run, lines(generation("d", "1")), source="tried"),
    ]
    Dump.objects.filter(source="tried").update(tries=1)
    indexer.index_dump(first.pk)
    assert {state for state, _ in list_states(others)} == {Dump.State.RECEIVED}
    for dump in others:
        indexer.index_dump(dump.pk)
    assert list_states([first, *others]) == [(Dump.State.INDEXED, 1)] * 5 + [(Dump.State.INDEXED, 2)]


@pytest.mark.parametrize("limit", [{"BATCH_DUMPS": 4}, {"BATCH_BYTES": 4 * 74}])
def test_the_size_of_a_batch_is_limited(run: Run, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(indexer, name, value)
    dumps = push_samples(run, 9)
    assert {dump.bytes for dump in dumps} == {74}
    indexer.index_dump(dumps[0].pk)
    assert [state for state, _ in list_states(dumps)] == [Dump.State.INDEXED] * 4 + [Dump.State.RECEIVED] * 5


@pytest.mark.parametrize("error", [DataError("value too long"), OperationalError("gone"), OSError(errno.EIO, "x")])
def test_dumps_of_a_batch_that_cannot_be_stored_are_tried_again_one_by_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    dumps, published = push_samples(run, 3), []
    finish = publishing.finish_dump

    def finish_or_fail(reading: Any) -> None:
        published.append(reading.dump.source)
        if reading.dump.pk == dumps[2].pk:
            raise error
        finish(reading)

    monkeypatch.setattr(publishing, "finish_dump", finish_or_fail)
    with pytest.raises(type(error)):
        indexer.index_dump(dumps[0].pk)
    assert {state for state, _ in list_states(dumps)} == {Dump.State.RECEIVED}
    assert list_samples(run) == [] and list_stored("bodies/") == []
    published.clear()
    for dump in dumps[:2]:
        indexer.index_dump(dump.pk)
    assert published == ["call:0", "call:1"]
    assert len(list_samples(run)) == 2


def test_a_batch_whose_first_dump_another_worker_took_over_is_released(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = push_samples(run, 3)
    publish = indexer.publish_samples

    def publish_after_takeover(readings: Any) -> None:
        Dump.objects.filter(pk=dumps[0].pk).update(tries=2)  # as by another worker
        publish(readings)

    monkeypatch.setattr(indexer, "publish_samples", publish_after_takeover)
    indexer.index_dump(dumps[0].pk)
    assert list_states(dumps) == [(Dump.State.INDEXING, 2), (Dump.State.RECEIVED, 1), (Dump.State.RECEIVED, 1)]
    assert list_samples(run) == [] and list_stored("bodies/") == []


def test_a_storage_error_stops_only_the_dumps_that_it_affects(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    dumps = push_samples(run, 3)
    fetch = raw_dumps.access.fetch_file

    def fetch_or_fail(key: str) -> Any:
        if dumps[1].sha256 in key:
            raise OSError(errno.EIO, "Input/output error")
        return fetch(key)

    monkeypatch.setattr(raw_dumps.access, "fetch_file", fetch_or_fail)
    indexer.index_dump(dumps[0].pk)
    assert [state for state, _ in list_states(dumps)] == ["indexed", "received", "indexed"]
    monkeypatch.undo()
    indexer.index_dump(dumps[1].pk)
    assert len(list_samples(run)) == 3


def test_other_dumps_wait_after_a_dump_failed(run: Run) -> None:
    """They are indexed together with the next dump."""
    broken, good = push(run, b"torn", source="torn.jsonl"), push_samples(run, 2)
    with pytest.raises(RolloutError):
        indexer.index_dump(broken.pk)
    assert [state for state, _ in list_states(good)] == [Dump.State.RECEIVED] * 2
    index_file(run, lines(generation("z", "z")), source="call:9")
    assert [state for state, _ in list_states(good)] == [Dump.State.INDEXED] * 2
