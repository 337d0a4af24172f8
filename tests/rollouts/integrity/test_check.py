"""fsck finds missing, damaged and orphaned files, and repairs what can be repaired."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from rollouts.errors import StorageUnavailableError
from rollouts.integrity import CheckOptions, Problem, check_integrity, iterate_references, repair_problems
from rollouts.models import Artifact, Dump, Run, Sample, Segment
from rollouts.pins import artifact_check
from rollouts.samples import load_bodies
from rollouts.storage import deletion_lock, list_files
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.rollouts.support.push import generation, index_file, lines
from tests.support.stored import StoredPath, body_path, list_stored, raw_path

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def stored_run(run: Run) -> Run:
    for step in range(1, 4):
        index_file(run, lines(generation(f"{step}+1?", str(step + 1), step=step)), step)
    artifact = upload_files(register_artifact(run, 1, {"meta.json": b"{}"}), {"meta.json": b"{}"})
    artifact_check.check_artifact(artifact.pk)
    return run


def find_problems(**options: float) -> list[Problem]:
    return check_integrity(CheckOptions(**{"grace": 0, **options})).problems


def repair_all() -> list[bool]:
    return [repair.repaired for repair in repair_problems(find_problems(), grace=0)]


def find_first_file(prefix: str) -> StoredPath:
    return min(list_stored(prefix), key=lambda path: path.key)


def list_responses() -> list[str]:
    return sorted(body.response for body in load_bodies(list(Sample.objects.all())).values())


def damage_file(path: StoredPath) -> None:
    """Changes one byte, so that the size stays the same."""
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(bytes(content))


def test_a_server_without_damage_has_no_problems(stored_run: Run) -> None:
    result = check_integrity(CheckOptions(grace=0))
    assert result.problems == []
    assert {kind: (count.files, count.verified) for kind, count in result.counts.items()} == {
        "raw": (3, 3),
        "bodies": (3, 3),
        "blobs": (1, 1),
        "images": (0, 0),
    }


def test_progress_and_rate_count_the_stored_bytes(run: Run) -> None:
    for step in (1, 2):  # one text many times: the stored bytes are a hundredth
        index_file(run, lines(*(generation("2+2?", f"{'4' * 1000}{row}", step=step) for row in range(500))), step)
    counts: list[int] = []
    result = check_integrity(CheckOptions(grace=0), lambda done, total, count: counts.append(count))
    assert result.counts["raw"].verified == 2
    assert 0 < max(counts) <= sum(count.bytes for count in result.counts.values())


@pytest.mark.parametrize("kind", ["raw", "bodies", "blobs"])
@pytest.mark.parametrize("problem", ["missing", "damaged"])
def test_a_missing_or_damaged_file_is_found(stored_run: Run, kind: str, problem: str) -> None:
    path = find_first_file(f"{kind}/")
    path.unlink() if problem == "missing" else damage_file(path)
    assert [(item.problem, item.name) for item in find_problems()] == [(problem, path.key)]


@pytest.mark.parametrize("problem", ["missing", "damaged"])
def test_a_body_is_rebuilt_from_the_raw_dump(stored_run: Run, problem: str) -> None:
    path = find_first_file("bodies/")
    path.unlink() if problem == "missing" else damage_file(path)
    assert repair_all() == [True]
    assert list_responses() == ["2", "3", "4"]
    assert find_problems() == [] and not path.exists()


def add_second_dump(run: Run) -> list[Dump]:
    """Returns both dumps of step 1."""
    index_file(run, lines(generation("9+1?", "10", step=1)), 1, source="rank-1", producer="1")
    return list(Dump.objects.filter(step=1, segment__isnull=False).select_related("segment").order_by("pk"))


@pytest.mark.parametrize("problem", ["missing", "damaged"])
def test_several_lost_bodies_of_one_step_are_rebuilt(stored_run: Run, problem: str) -> None:
    for dump in add_second_dump(stored_run):
        assert dump.segment
        path = body_path(dump.segment.path)
        path.unlink() if problem == "missing" else path.write_bytes(b"damaged")
    assert repair_all() == [True, True]
    assert list_responses() == ["10", "2", "3", "4"]
    assert find_problems() == []


@pytest.mark.parametrize("problem", ["missing", "damaged"])
def test_a_dump_is_not_lost_because_another_dump_of_its_step_is(stored_run: Run, problem: str) -> None:
    first, second = add_second_dump(stored_run)
    for dump in (first, second):
        assert dump.segment
        path = body_path(dump.segment.path)
        path.unlink() if problem == "missing" else path.write_bytes(b"damaged")
    raw_path(stored_run.project_id, second.sha256).unlink()
    assert sorted(repair_all()) == [False, False, True]
    states = Dump.objects.in_bulk([first.pk, second.pk])
    assert (states[first.pk].state, states[second.pk].state) == (Dump.State.INDEXED, Dump.State.FAILED)
    assert list_responses() == ["2", "3", "4"]


def test_lost_texts_are_marked_on_the_dump(stored_run: Run) -> None:
    dump = Dump.objects.select_related("segment").order_by("pk")[0]
    body_path(dump.segment.path).unlink()
    raw_path(stored_run.project_id, dump.sha256).unlink()
    assert repair_all() == [False, False]
    dump.refresh_from_db()
    assert dump.state == Dump.State.FAILED and "are lost" in dump.message and dump.segment is None
    with pytest.raises(StorageUnavailableError):
        list_responses()
    assert Sample.objects.count() == 3
    assert [(problem.problem, problem.kind) for problem in find_problems()] == [
        ("missing", "raw")
    ]  # until it is sent again


def test_raw_bytes_that_retention_dropped_are_not_missing(stored_run: Run) -> None:
    dump = Dump.objects.order_by("pk")[0]
    Dump.objects.filter(pk=dump.pk).update(raw_dropped_at=timezone.now())
    raw_path(stored_run.project_id, dump.sha256).unlink()
    assert find_problems() == [] and len([name for name in iterate_references() if name.kind == "raw"]) == 2
    body_path(dump.segment.path).unlink()
    assert repair_all() == [False]
    dump.refresh_from_db()
    assert dump.state == Dump.State.FAILED and "are lost" in dump.message


def test_a_lost_artifact_file_is_requested_again(stored_run: Run) -> None:
    find_first_file("blobs/").unlink()
    repair_all()
    artifact = Artifact.objects.get()
    assert (artifact.state, artifact.missing, artifact.blobs.count()) == ("waiting", 1, 0) and find_problems() == []
    upload_files(artifact, {"meta.json": b"{}"})
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    assert artifact.state == "ready"


def test_orphans_are_removed_after_the_grace_period(stored_run: Run) -> None:
    orphans = [StoredPath(key) for key in ("raw/1/aa/orphan.zst", "bodies/orphan.parquet", "images/run-99/aa/aa")]
    for path in orphans:
        path.write_bytes(b"x")
    assert find_problems(grace=3600) == []
    for path in orphans:
        path.set_age(4 * 3600)
    problems = find_problems(grace=3600)
    assert sorted(problem.name for problem in problems) == sorted(path.key for path in orphans)
    with deletion_lock.forbid_deletion():  # as a backup does
        assert [repair.repaired for repair in repair_problems(problems)] == [False] * 3
    assert [repair.repaired for repair in repair_problems(problems)] == [True] * 3
    assert not [path for path in orphans if path.exists()] and find_problems() == []


def test_a_file_that_is_used_again_since_the_check_is_kept(stored_run: Run) -> None:
    orphan = StoredPath("bodies/orphan.parquet")
    orphan.write_bytes(b"x")
    orphan.set_age(4 * 3600)
    problems = find_problems(grace=3600)
    Segment.objects.create(run=stored_run, split="train", path="orphan.parquet", rows=1, bytes=1)
    (repair,) = repair_problems(problems)
    assert repair.action.startswith("kept") and orphan.exists()


def test_a_dump_with_rows_beyond_the_end_of_its_body_file_is_found(stored_run: Run) -> None:
    Segment.objects.filter(dumps__step=2).update(rows=0)
    assert "bodyless" in {problem.problem for problem in find_problems()}


def test_a_row_that_was_removed_during_the_check_is_no_problem(stored_run: Run) -> None:
    def compact(done: int, *_: int) -> None:
        if done == 0:
            for path in list_stored("bodies/"):
                path.unlink()
            Segment.objects.all().delete()

    problems = check_integrity(CheckOptions(grace=0), compact).problems
    assert {problem.problem for problem in problems} == {"bodyless"}


def test_only_the_given_share_of_files_is_verified(stored_run: Run) -> None:
    damage_file(find_first_file("blobs/"))
    result = check_integrity(CheckOptions(sample=0, grace=0))
    assert result.problems == [] and {count.verified for count in result.counts.values()} == {0}


def test_the_rate_is_limited(stored_run: Run) -> None:
    size = sum(file.bytes for file in list_files("bodies/"))
    started = time.monotonic()
    check_integrity(CheckOptions(grace=0, rate=size))
    assert time.monotonic() - started >= 0.8


def test_the_command_has_a_table_and_a_status(stored_run: Run) -> None:
    output = StringIO()
    call_command("fsck", "--grace=0", stdout=output)
    assert output.getvalue().endswith("Clean.\n")
    find_first_file("bodies/").unlink()
    output = StringIO()
    with pytest.raises(SystemExit) as end:
        call_command("fsck", "--grace=0", "--json", "--repair", stdout=output)
    report = json.loads(output.getvalue())
    assert end.value.code == 1 and report["clean"] is False
    assert [problem["problem"] for problem in report["problems"]] == ["missing"]
    assert [repair["repaired"] for repair in report["repairs"]] == [True]
    call_command("fsck", "--grace=0", stdout=output)


def test_the_command_leaves_files_to_the_hourly_cleanup(stored_run: Run, capsys: Any) -> None:
    orphan = StoredPath("bodies/orphan.parquet")
    orphan.write_bytes(b"x")
    orphan.set_age(2 * 3600)
    call_command("fsck")
    orphan.set_age(4 * 3600)
    with pytest.raises(SystemExit):
        call_command("fsck")
    printed = capsys.readouterr().out
    assert "orphan   bodies/orphan.parquet" in printed and "1 problem. `rolloutdeck fsck --repair`" in printed
