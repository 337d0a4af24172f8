"""Small body files of a run are compacted into one, and no sample is lost."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import connection

from rollouts.errors import StorageUnavailableError
from rollouts.indexing import indexer
from rollouts.maintenance import compaction
from rollouts.models import Dump, Project, Run, Sample, Segment
from rollouts.samples import bodies, export
from tests.rollouts.support.push import generation, index_file, lines, list_samples, push
from tests.support import builders
from tests.support.stored import StoredPath, body_path, list_stored

pytestmark = pytest.mark.django_db
Commit = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def run(project: Project) -> Run:
    run = builders.run(project)
    for step in range(1, 6):
        more: dict[str, Any] = {"acc": 1.0} if step % 2 else {"lang": "zh"}
        index_file(run, lines(*(generation(f"p{i}", f"{step}-{i}", step=step, **more) for i in range(150))), step)
    return run


def load_texts(run: Run) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    read = bodies.load_bodies(list_samples(run))
    return {id: (body.response, body.rewards, body.extras) for id, body in read.items()}


def refuse_access(key: str) -> None:
    raise PermissionError(key)


def list_body_files() -> list[StoredPath]:
    return list_stored("bodies/")


def test_small_body_files_are_compacted_into_one_and_samples_keep_their_texts(
    run: Run, django_capture_on_commit_callbacks: Commit
) -> None:
    before = load_texts(run)
    with django_capture_on_commit_callbacks(execute=True):
        assert compaction.compact_body_files(run.pk, "train") == 5
    assert len(before) == 750
    assert load_texts(run) == before
    assert compaction.compact_body_files(run.pk, "train") == compaction.compact_body_files(run.pk, "eval") == 0


def test_files_that_are_large_enough_stay_as_they_are(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """To copy them would take a third of the work of indexing, and for an hour twice the space."""
    sizes = sorted(Segment.objects.values_list("bytes", flat=True))
    monkeypatch.setattr(compaction, "MIN_SMALL_FILES", 2)
    monkeypatch.setattr(compaction, "MAX_SMALL_BYTES", sizes[3] + 1)
    due = [(run.pk, "train")]
    kept = sizes[4:]
    assert compaction.find_splits_to_compact() == due
    assert compaction.compact_body_files(run.pk, "train") == 5 - len(kept)
    assert set(kept) <= set(Segment.objects.values_list("bytes", flat=True))


@pytest.mark.django_db(transaction=True)
def test_an_export_that_began_before_a_compaction_has_all_its_samples(run: Run) -> None:
    """In SQLite a connection that is still reading rows sees the data as it was when the read began."""
    batches = export.iterate_full_samples(Sample.objects.order_by("step", "dump", "ordinal"))
    read = len(next(batches))

    def compact() -> None:
        assert compaction.compact_body_files(run.pk, "train") == 5
        connection.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compact).result()
    assert read + sum(map(len, batches)) == 750


@pytest.mark.django_db(transaction=True)
def test_an_error_after_the_commit_of_a_compaction_deletes_no_body(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_texts(run)
    monkeypatch.setattr(compaction, "touch_file", refuse_access)
    with pytest.raises(PermissionError):
        compaction.compact_body_files(run.pk, "train")
    assert load_texts(run) == before


def test_the_old_files_of_a_compaction_are_deleted_after_an_hour(
    run: Run, django_capture_on_commit_callbacks: Commit
) -> None:
    old = list_body_files()
    for path in old:
        path.set_age(1e6)
    with django_capture_on_commit_callbacks(execute=True):
        compaction.compact_body_files(run.pk, "train")
    assert compaction.delete_orphan_bodies() == 0
    assert set(old) < set(list_body_files())
    for path in old:
        path.set_age(4000)
    assert compaction.delete_orphan_bodies() == len(old) == 5
    assert len(list_body_files()) == Segment.objects.count() == 1


@pytest.mark.parametrize("problem", ["missing", "empty", "pages"])
def test_a_file_that_is_missing_or_damaged_is_left_out(run: Run, problem: str) -> None:
    damaged_dump = Dump.objects.select_related("segment").get(step=2)
    path, before = body_path(damaged_dump.segment.path), load_texts(run)
    content = path.read_bytes()
    if problem == "missing":
        path.unlink()
    else:  # the schema of a file with damaged pages can be read
        path.write_bytes(b"" if problem == "empty" else content[:4] + bytes(100) + content[104:])
    assert compaction.compact_body_files(run.pk, "train") == 4
    assert Segment.objects.filter(dumps__isnull=False).distinct().count() == 2
    assert compaction.compact_body_files(run.pk, "train") == 0
    others = [sample for sample in list_samples(run) if sample.dump_id != damaged_dump.pk]
    assert {id: body.response for id, body in bodies.load_bodies(others).items()} == {
        sample.pk: before[sample.pk][0] for sample in others
    }
    assert not compaction.remove_unused_rows(damaged_dump.segment)


def test_a_compaction_stops_if_the_storage_does_not_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(compaction, "fetch_body_file", refuse)
    with pytest.raises(OSError, match="Input/output"):
        compaction.compact_body_files(run.pk, "train")


def test_a_compaction_opens_each_file_once_for_all_its_dumps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The footer of a file with hundreds of dumps takes a tenth of a second to parse."""
    compaction.compact_body_files(run.pk, "train")
    index_file(run, lines(generation("p", "6", step=6)), 6)
    before = load_texts(run)
    segment_ids: list[int | None] = []
    open_body_file = bodies.open_body_file

    def record_opening(dump: Dump) -> Any:
        segment_ids.append(dump.segment_id)
        return open_body_file(dump)

    for module in (bodies, compaction):
        monkeypatch.setattr(module, "open_body_file", record_opening)
    assert compaction.compact_body_files(run.pk, "train") == 2
    assert len(segment_ids) == len(set(segment_ids)) == 2
    assert load_texts(run) == before


def test_a_sample_stays_readable_between_the_old_file_and_the_new_one(run: Run) -> None:
    sample = list_samples(run)[700]
    stale = Dump.objects.select_related("segment").get(pk=sample.dump_id)
    compaction.compact_body_files(run.pk, "train")
    for path in list_body_files():
        if not path.name.startswith("segment-"):
            path.unlink()
    assert bodies.load_dump_records(stale, [sample.ordinal])[sample.ordinal].response == sample.tail


def test_a_reindex_moves_a_dump_out_of_its_segment_and_a_compaction_drops_the_old_rows(run: Run) -> None:
    compaction.compact_body_files(run.pk, "train")
    before = load_texts(run)
    indexer.reindex_run(run)
    for dump in Dump.objects.order_by("pk")[:2]:
        indexer.index_dump(dump.pk)
    assert load_texts(run) == before
    compaction.compact_body_files(run.pk, "train")
    assert load_texts(run) == before
    assert set(Segment.objects.filter(dumps__isnull=False).values_list("rows", flat=True)) == {750}


def test_a_sample_is_readable_after_its_dump_was_indexed_again(run: Run) -> None:
    dump = index_file(run, lines(generation(response="before")))
    stale = Dump.objects.get(pk=dump.pk)
    indexer.reindex_run(run)
    indexer.index_dump(dump.pk)
    assert not Segment.objects.filter(pk=stale.segment_id or 0).exists()
    assert bodies.load_dump_records(stale, [0])[0].response == "before"


def test_a_compaction_during_a_reindex_changes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_texts(run)
    copy = compaction.copy_rows

    def copy_during_reindex(dumps: Any, path: Path) -> Any:
        moved = copy(dumps, path)
        indexer.reindex_run(run)
        indexer.index_dump(dumps[0].pk)
        return moved

    monkeypatch.setattr(compaction, "copy_rows", copy_during_reindex)
    assert compaction.compact_body_files(run.pk, "train") == 0
    assert load_texts(run) == before
    assert not [path for path in list_body_files() if path.name.startswith("segment-")]


def test_two_sources_are_merged_if_one_of_them_is_in_a_segment(run: Run) -> None:
    compaction.compact_body_files(run.pk, "train")
    index_file(run, lines({"prompt": "p3", "response": "3-3", "advantages": 0.5}), 3, source="plugin", format="native")
    assert Sample.objects.get(tail="3-3").advantage == 0.5
    assert len(list_samples(run)) == 750


def test_orphan_files_are_deleted_after_an_hour(run: Run) -> None:
    for name, age in (("old.parquet", 4000), ("young.parquet", 10)):
        path = body_path(f"{run.pk}/train/{name}")
        path.write_bytes(b"x")
        path.set_age(age)
    for path in list_body_files():
        if path.name not in ("old.parquet", "young.parquet"):
            path.set_age(1e6)
    assert compaction.delete_orphan_bodies() == 1
    assert "young.parquet" in {path.name for path in list_body_files()}
    assert len(load_texts(run)) == 750


def test_a_lost_body_is_reported_and_a_reindex_restores_it(run: Run) -> None:
    sample = list_samples(run)[0]
    for path in list_body_files():
        path.unlink()
    with pytest.raises(StorageUnavailableError, match="Re-index the run"):
        bodies.load_bodies([sample])
    indexer.reindex_run(run)
    indexer.index_dump(sample.dump_id)
    assert bodies.load_bodies(list_samples(run)[:1])[sample.id].response == sample.tail


def test_a_dump_of_another_run_is_never_touched(run: Run) -> None:
    other = builders.run(run.project, "other")
    other_dump = push(other, lines(generation()))
    indexer.index_dump(other_dump.pk)
    compaction.compact_body_files(run.pk, "train")
    other_dump.refresh_from_db()
    assert other_dump.segment and other_dump.segment.run == other


def test_small_dumps_share_row_groups(run: Run) -> None:
    """A row group for each dump would make the footer longer than the data."""
    for number in range(40):
        index_file(run, lines(generation(response=f"answer {number}")), source=f"{number}.jsonl")
    before = load_texts(run)
    assert compaction.compact_body_files(run.pk, "train") >= 40
    segment = Segment.objects.get(pk__in=Dump.objects.filter(source="7.jsonl").values("segment"))
    written = pq.ParquetFile(io.BytesIO(body_path(segment.path).read_bytes())).metadata
    assert written.num_rows >= 40 and written.num_row_groups < 10
    assert load_texts(run) == before
