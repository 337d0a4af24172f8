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


def texts(run: Run) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    read = bodies.load_bodies(list_samples(run))
    return {id: (body.response, body.rewards, body.extras) for id, body in read.items()}


def refused(key: str) -> None:
    raise PermissionError(key)


def files() -> list[StoredPath]:
    return list_stored("bodies/")


def test_small_bodies_are_folded_into_one_and_every_sample_reads_as_before(
    run: Run, django_capture_on_commit_callbacks: Commit
) -> None:
    before = texts(run)
    with django_capture_on_commit_callbacks(execute=True):
        assert compaction.compact_body_files(run.pk, "train") == 5
    assert len(before) == 750
    assert texts(run) == before
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
def test_an_export_that_began_before_a_fold_ends_with_all_its_samples(run: Run) -> None:
    """SQLite shows a connection that is still reading rows everything as it was when it began."""
    batches = export.iterate_full_samples(Sample.objects.order_by("step", "dump", "ordinal"))
    read = len(next(batches))

    def fold() -> None:
        assert compaction.compact_body_files(run.pk, "train") == 5
        connection.close()

    with ThreadPoolExecutor(1) as other:
        other.submit(fold).result()
    assert read + sum(map(len, batches)) == 750


@pytest.mark.django_db(transaction=True)
def test_what_fails_behind_the_commit_of_a_fold_takes_no_body_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts(run)
    monkeypatch.setattr(compaction, "touch_file", refused)
    with pytest.raises(PermissionError):
        compaction.compact_body_files(run.pk, "train")
    assert texts(run) == before


def test_the_files_that_a_fold_leaves_go_after_an_hour(run: Run, django_capture_on_commit_callbacks: Commit) -> None:
    old = files()
    for path in old:
        path.set_age(1e6)
    with django_capture_on_commit_callbacks(execute=True):
        compaction.compact_body_files(run.pk, "train")
    assert compaction.delete_orphan_bodies() == 0
    assert set(old) < set(files())
    for path in old:
        path.set_age(4000)
    assert compaction.delete_orphan_bodies() == len(old) == 5
    assert len(files()) == Segment.objects.count() == 1


@pytest.mark.parametrize("problem", ["missing", "empty", "pages"])
def test_a_file_that_is_missing_or_damaged_is_left_out(run: Run, problem: str) -> None:
    lost = Dump.objects.select_related("segment").get(step=2)
    path, before = body_path(lost.segment.path), texts(run)
    content = path.read_bytes()
    if problem == "missing":
        path.unlink()
    else:  # the schema of a file with damaged pages can be read
        path.write_bytes(b"" if problem == "empty" else content[:4] + bytes(100) + content[104:])
    assert compaction.compact_body_files(run.pk, "train") == 4
    assert Segment.objects.filter(dumps__isnull=False).distinct().count() == 2
    assert compaction.compact_body_files(run.pk, "train") == 0
    others = [sample for sample in list_samples(run) if sample.dump_id != lost.pk]
    assert {id: body.response for id, body in bodies.load_bodies(others).items()} == {
        sample.pk: before[sample.pk][0] for sample in others
    }
    assert not compaction.remove_unused_rows(lost.segment)


def test_a_storage_that_does_not_answer_leaves_no_file_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(compaction, "fetch_body_file", refuse)
    with pytest.raises(OSError, match="Input/output"):
        compaction.compact_body_files(run.pk, "train")


def test_a_fold_opens_each_file_once_however_many_dumps_lie_in_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The foot of a file that hundreds of dumps were folded into takes a tenth of a second to parse."""
    compaction.compact_body_files(run.pk, "train")
    index_file(run, lines(generation("p", "6", step=6)), 6)
    before = texts(run)
    positions: list[int | None] = []
    real = bodies.open_body_file

    def opened(dump: Dump) -> Any:
        positions.append(dump.segment_id)
        return real(dump)

    for module in (bodies, compaction):
        monkeypatch.setattr(module, "open_body_file", opened)
    assert compaction.compact_body_files(run.pk, "train") == 2
    assert len(positions) == len(set(positions)) == 2
    assert texts(run) == before


def test_a_sample_stays_readable_between_the_old_file_and_the_new_one(run: Run) -> None:
    sample = list_samples(run)[700]
    stale = Dump.objects.select_related("segment").get(pk=sample.dump_id)
    compaction.compact_body_files(run.pk, "train")
    for path in files():
        if not path.name.startswith("segment-"):
            path.unlink()
    assert bodies.load_dump_records(stale, [sample.ordinal])[sample.ordinal].response == sample.tail


def test_a_reindex_moves_a_dump_out_of_its_segment_and_the_next_fold_drops_the_garbage(run: Run) -> None:
    compaction.compact_body_files(run.pk, "train")
    before = texts(run)
    indexer.reindex_run(run)
    for dump in Dump.objects.order_by("pk")[:2]:
        indexer.index_dump(dump.pk)
    assert texts(run) == before
    compaction.compact_body_files(run.pk, "train")
    assert texts(run) == before
    assert set(Segment.objects.filter(dumps__isnull=False).values_list("rows", flat=True)) == {750}


def test_a_sample_is_read_although_its_dump_was_indexed_again_since_its_row_was(run: Run) -> None:
    dump = index_file(run, lines(generation(response="before")))
    seen = Dump.objects.get(pk=dump.pk)
    indexer.reindex_run(run)
    indexer.index_dump(dump.pk)
    assert not Segment.objects.filter(pk=seen.segment_id or 0).exists()
    assert bodies.load_dump_records(seen, [0])[0].response == "before"


def test_a_fold_that_meets_a_reindex_gives_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts(run)
    copy = compaction.copy_rows

    def slow_copy(dumps: Any, path: Path) -> Any:
        moved = copy(dumps, path)
        indexer.reindex_run(run)
        indexer.index_dump(dumps[0].pk)
        return moved

    monkeypatch.setattr(compaction, "copy_rows", slow_copy)
    assert compaction.compact_body_files(run.pk, "train") == 0
    assert texts(run) == before
    assert not [path for path in files() if path.name.startswith("segment-")]


def test_two_sources_can_settle_when_one_of_them_lies_in_a_segment(run: Run) -> None:
    compaction.compact_body_files(run.pk, "train")
    index_file(run, lines({"prompt": "p3", "response": "3-3", "advantages": 0.5}), 3, source="plugin", format="native")
    assert Sample.objects.get(tail="3-3").advantage == 0.5
    assert len(list_samples(run)) == 750


def test_files_that_no_row_names_go_after_an_hour(run: Run) -> None:
    for name, age in (("old.parquet", 4000), ("young.parquet", 10)):
        path = body_path(f"{run.pk}/train/{name}")
        path.write_bytes(b"x")
        path.set_age(age)
    for path in files():
        if path.name not in ("old.parquet", "young.parquet"):
            path.set_age(1e6)
    assert compaction.delete_orphan_bodies() == 1
    assert "young.parquet" in {path.name for path in files()}
    assert len(texts(run)) == 750


def test_a_lost_body_is_said_in_one_sentence_and_a_reindex_mends_it(run: Run) -> None:
    sample = list_samples(run)[0]
    for path in files():
        path.unlink()
    with pytest.raises(StorageUnavailableError, match="Re-index the run"):
        bodies.load_bodies([sample])
    indexer.reindex_run(run)
    indexer.index_dump(sample.dump_id)
    assert bodies.load_bodies(list_samples(run)[:1])[sample.id].response == sample.tail


def test_a_dump_of_another_run_is_never_touched(run: Run) -> None:
    other = builders.run(run.project, "other")
    mine = push(other, lines(generation()))
    indexer.index_dump(mine.pk)
    compaction.compact_body_files(run.pk, "train")
    mine.refresh_from_db()
    assert mine.segment and mine.segment.run == other


def test_small_dumps_share_row_groups(run: Run) -> None:
    """A row group for each dump would make the footer longer than the data."""
    for number in range(40):
        index_file(run, lines(generation(response=f"answer {number}")), source=f"{number}.jsonl")
    before = texts(run)
    assert compaction.compact_body_files(run.pk, "train") >= 40
    segment = Segment.objects.get(pk__in=Dump.objects.filter(source="7.jsonl").values("segment"))
    written = pq.ParquetFile(io.BytesIO(body_path(segment.path).read_bytes())).metadata
    assert written.num_rows >= 40 and written.num_row_groups < 10
    assert texts(run) == before
