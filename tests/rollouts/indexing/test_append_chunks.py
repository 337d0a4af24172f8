"""Chunks of a growing file: equal samples in two chunks are two samples, in any order of indexing."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from rollouts.indexing import append_chunks, indexer
from rollouts.indexing.reading import DumpReading
from rollouts.indexing.verification import find_body_difference
from rollouts.models import Dump, Run, Step
from rollouts.samples import load_bodies
from rollouts.samples.identity import SampleIdGenerator
from tests.rollouts.support.push import list_samples, push

pytestmark = pytest.mark.django_db
ANSWERS = ["A", "B", "B", "C", "B", "A"]


def row(answer: str, **more: Any) -> bytes:
    return json.dumps({"prompt": "3?", "response": answer, "score": 1.0, **more}).encode() + b"\n"


FILE = [row(answer) for answer in ANSWERS]


def push_chunk(run: Run, first: int, end: int, parts: list[bytes] = FILE, **header: Any) -> Dump:
    """Pushes the rows from `first` to `end` as a chunk that waits to be indexed."""
    options = {"step": 1, "source": "7.jsonl", "format": "native", **header}
    return push(run, b"".join(parts[first:end]), offset=len(b"".join(parts[:first])), **options)


def index_waiting_dumps(run: Run) -> None:
    """Indexes dumps as the sweep does, until none waits."""
    while waiting := Dump.objects.filter(run=run, state=Dump.State.RECEIVED).order_by("pk").first():
        indexer.index_dump(waiting.pk)


def compute_ids(run: Run, answers: list[str], step: int = 1) -> list[str]:
    """The ids that the samples of the whole file have."""
    generator = SampleIdGenerator(run.uid, "files", "train", "global_step", step, "")
    return sorted(generator.generate_ids([("3?", answer) for answer in answers]))


def list_ids(run: Run, **which: Any) -> list[str]:
    return sorted(sample.pk for sample in list_samples(run, **which))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_equal_samples_of_several_chunks_are_those_of_the_whole_file(run: Run, order: tuple[int, ...]) -> None:
    chunks = [push_chunk(run, *bounds) for bounds in ((0, 2), (2, 4), (4, 6))]
    for position in order:
        indexer.index_dump(chunks[position].pk)
    index_waiting_dumps(run)
    assert list_ids(run) == compute_ids(run, ANSWERS)
    assert Step.objects.get().samples == 6
    full = load_bodies(list_samples(run))
    assert sorted(sample.response for sample in full.values()) == sorted(ANSWERS)


def test_the_whole_file_after_its_chunks_gives_the_same_samples(run: Run) -> None:
    for bounds in ((0, 2), (2, 4), (4, 6), (0, 6), (0, 3), (3, 6)):
        indexer.index_dump(push_chunk(run, *bounds).pk)
        index_waiting_dumps(run)
    assert list_ids(run) == compute_ids(run, ANSWERS)
    indexer.reindex_run(run)
    index_waiting_dumps(run)
    assert list_ids(run) == compute_ids(run, ANSWERS)


def test_a_new_generation_of_the_file_is_counted_from_its_beginning(run: Run) -> None:
    for generation in (0, 1):
        for bounds in ((0, 2), (2, 6)):
            indexer.index_dump(push_chunk(run, *bounds, generation=generation).pk)
    assert list_ids(run) == compute_ids(run, ANSWERS)


def test_calls_can_say_how_many_equal_samples_were_logged_before(run: Run) -> None:
    for position, (earlier, call) in enumerate((("", "AB"), ("AB", "BC"), ("ABBC", "BBA"))):
        body = b"".join(row(answer, earlier_equal_samples=earlier.count(answer)) for answer in call)
        indexer.index_dump(push(run, body, 1, source=f"call:{position}", format="native").pk)
        indexer.index_dump(push(run, body, 1, source=f"call:{position}-again", format="native").pk)
    assert list_ids(run) == compute_ids(run, list("ABBCBBA"))


def test_other_files_and_producers_are_counted_by_themselves(run: Run) -> None:
    for header in ({}, {"source": "8.jsonl"}, {"producer": "node-1"}):
        for bounds in ((0, 2), (2, 6)):
            indexer.index_dump(push_chunk(run, *bounds, **header).pk)
    assert len(list_ids(run)) == 2 * len(ANSWERS)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_chunks_with_rows_of_several_steps_are_counted_in_each_step(run: Run, order: tuple[int, ...]) -> None:
    parts = [row(answer, step=step) for answer, step in zip("BBABBBA", (1, 2, 1, 1, 2, 2, 3), strict=True)]
    chunks = [push_chunk(run, *bounds, parts, step=None) for bounds in ((0, 3), (3, 7))]
    for position in order:
        indexer.index_dump(chunks[position].pk)
    index_waiting_dumps(run)
    for step, answers in ((1, "BAB"), (2, "BBB"), (3, "A")):
        assert list_ids(run, step__step=step) == compute_ids(run, list(answers), step)


def test_indexing_again_in_any_order_changes_no_id(run: Run) -> None:
    for bounds in ((0, 2), (2, 4), (4, 6)):
        indexer.index_dump(push_chunk(run, *bounds).pk)
    samples = {sample.pk: (sample.dump.offset, sample.ordinal) for sample in list_samples(run)}
    assert {find_body_difference(dump) for dump in Dump.objects.all()} == {""}
    indexer.reindex_run(run)
    for dump in Dump.objects.order_by("-pk"):
        indexer.index_dump(dump.pk)
    index_waiting_dumps(run)
    assert {sample.pk: (sample.dump.offset, sample.ordinal) for sample in list_samples(run)} == samples


def test_samples_that_an_older_version_lost_come_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(append_chunks, "find_chunks", lambda dump: ([], []))
        for bounds in ((0, 2), (2, 6)):
            indexer.index_dump(push_chunk(run, *bounds).pk)
    before = list_ids(run)
    assert len(before) == 4
    assert [find_body_difference(dump) for dump in Dump.objects.all()] == ["", ""], "the raw bytes can be dropped"
    indexer.reindex_run(run)
    index_waiting_dumps(run)
    assert set(before) < set(list_ids(run)) == set(compute_ids(run, ANSWERS))


def test_a_chunk_that_ends_while_the_next_is_indexed_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (push_chunk(run, *bounds) for bounds in ((0, 2), (2, 6)))
    write_body = DumpReading.write_body

    def write_slowly(*args: Any) -> None:
        monkeypatch.setattr(DumpReading, "write_body", write_body)
        write_body(*args)
        indexer.index_dump(first.pk)

    monkeypatch.setattr(DumpReading, "write_body", write_slowly)
    indexer.index_dump(second.pk)
    assert list_ids(run) == compute_ids(run, ANSWERS)
    assert not Dump.objects.exclude(state=Dump.State.INDEXED).exists()
