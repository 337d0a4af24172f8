"""Raw bytes are dropped only once the body is verified to have every row."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rollouts.errors import RolloutError, StorageUnavailableError
from rollouts.indexing import find_body_difference
from rollouts.indexing.indexer import index_dump
from rollouts.maintenance import compact_body_files
from rollouts.models import Dump, Run
from rollouts.retention import apply as passes
from rollouts.retention import apply_policy, build_report, delete_orphan_raw_files, update_policy
from rollouts.storage import access
from tests.rollouts.real_dumps import list_dumps
from tests.rollouts.retention.test_drop import age_steps, check_files, update_and_apply_policy, write_step
from tests.rollouts.support.push import generation, index_file, lines, push
from tests.support import builders
from tests.support.stored import body_path, list_stored, raw_path

pytestmark = pytest.mark.django_db
DATA = Path(__file__).parents[2] / "data"


def count_raw_files(data_dir: Path) -> int:
    return len(list_stored("raw/"))


def test_raw_bytes_are_dropped_and_the_samples_stay(run: Run, owner: User, data_dir: Path) -> None:
    for step in (1, 2, 3):
        write_step(run, step)
    write_step(run, 3, "eval")
    compact_body_files(run.pk, "train")
    age_steps(run)
    policy = update_policy(run.project, owner, {"raw_after_days": 7})
    report = build_report(policy)["raw"]
    assert report["dumps"] == 3 and report["bytes"] > 0 and report["kept"] == {"evaluation": 1}
    update_and_apply_policy(run.project, owner, raw_after_days=7)
    assert count_raw_files(data_dir) == 1, "that of the evaluation"
    assert Dump.objects.filter(raw_dropped_at__isnull=False, raw_dropped_bytes__gt=0).count() == 3
    check_files(run)


def test_recent_dumps_and_metrics_keep_their_bytes(run: Run, owner: User, data_dir: Path) -> None:
    write_step(run, 1)
    index_file(run, b'{"step": 1, "data": {"loss": 1.0}}\n', None, source="metrics.jsonl", format="verl-metrics")
    update_and_apply_policy(run.project, owner, raw_after_days=7)
    assert count_raw_files(data_dir) == 2
    age_steps(run)
    policy = update_and_apply_policy(run.project, owner, raw_after_days=6)
    assert count_raw_files(data_dir) == 1
    assert build_report(policy)["raw"]["kept"] == {"no-samples": 1}


def test_a_raw_file_that_another_run_has_too_stays(run: Run, owner: User, data_dir: Path) -> None:
    other = builders.run(run.project, "other", tags=["keep"])
    write_step(run, 1)
    write_step(other, 1)
    age_steps(run)
    age_steps(other)
    update_and_apply_policy(run.project, owner, raw_after_days=0)
    assert count_raw_files(data_dir) == 1
    check_files(other)


def test_a_raw_file_of_several_steps_is_dropped_with_its_last_part(run: Run, owner: User, data_dir: Path) -> None:
    rows = [generation("q", f"answer {step}", step=step) for step in (1, 1, 2, 3)]
    index_file(run, lines(*rows), None, source="all.jsonl")
    assert count_raw_files(data_dir) == 4 and Dump.objects.count() == 4
    age_steps(run)
    policy = update_policy(run.project, owner, {"raw_after_days": 0})
    assert build_report(policy)["raw"]["kept"] == {"several-steps": 1}
    update_and_apply_policy(run.project, owner, raw_after_days=0)
    assert count_raw_files(data_dir) == 0


def test_files_without_a_row_are_removed_after_an_hour(run: Run, data_dir: Path) -> None:
    dump = write_step(run, 1)
    path = raw_path(run.project_id, dump.sha256)
    orphan = raw_path(run.project_id, "f" * 64)
    orphan.write_bytes(b"x")
    assert delete_orphan_raw_files() == 0, "it is young"
    orphan.set_age(1e6)
    path.set_age(1e6)
    assert delete_orphan_raw_files() == 1
    assert path.exists() and not orphan.exists()


def test_real_dumps_are_reproduced(run: Run) -> None:
    """One file of each format that writes text."""
    differences: dict[str, str] = {}
    seen: set[str] = set()
    for number, path in enumerate(path for path in list_dumps() if path.stat().st_size < 1 << 20):
        folder = f"{path.relative_to(DATA).parts[0]}{path.suffix}"
        if folder in seen:
            continue
        seen.add(folder)
        dump = push(run, path.read_bytes(), number, source=path.name)
        with suppress(RolloutError):
            index_dump(dump.pk)
        dump.refresh_from_db()
        if dump.segment and (difference := find_body_difference(dump)):
            differences[str(path.relative_to(DATA))] = difference
    assert Dump.objects.filter(segment__isnull=False).count() > 10
    assert {path: text for path, text in differences.items() if "tokens only" not in text} == {}


@pytest.mark.parametrize(
    "row",
    [
        {"score": float("nan")},
        {"logprobs": [float("nan"), -1.0], "note": "ä\ud800"},
        {"big": 2**60, "nested": {"a": [1, None]}},
    ],
)
def test_unusual_values_are_reproduced(run: Run, row: dict[str, Any]) -> None:
    body = b"".join(json.dumps({**generation(), **row, "output": str(n)}).encode() + b"\n" for n in range(300))
    assert find_body_difference(index_file(run, body, 1)) == ""


def test_a_storage_outage_is_not_stored_as_a_difference(run: Run, owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = write_step(run, 1)
    age_steps(run)

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(access, "fetch_file", refuse)
        update_and_apply_policy(run.project, owner, raw_after_days=0)
    dump.refresh_from_db()
    assert (dump.raw_kept_at, dump.raw_dropped_at) == (None, None)
    update_and_apply_policy(run.project, owner, raw_after_days=0)
    dump.refresh_from_db()
    assert dump.raw_dropped_at


def test_a_dump_that_cannot_be_compared_does_not_stop_the_next_ones(
    run: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = write_step(run, 1), write_step(run, 2)
    age_steps(run)
    drop = passes.drop_raw_dump

    def refuse_first(dump: Dump) -> int:
        if dump.pk == first.pk:
            raise StorageUnavailableError("Input/output error")
        return drop(dump)

    monkeypatch.setattr(passes, "drop_raw_dump", refuse_first)
    apply_policy(update_policy(run.project, owner, {"raw_after_days": 0}), max_seconds=0)
    second.refresh_from_db()
    assert second.raw_dropped_at


def test_a_body_that_was_moved_meanwhile_is_no_difference_and_a_missing_one_is(run: Run) -> None:
    for step in (1, 2):
        write_step(run, step)
    listed = Dump.objects.select_related("run", "segment").get(step=1)
    compact_body_files(run.pk, "train")
    body_path(listed.segment.path).unlink()  # an hour later
    with pytest.raises(StorageUnavailableError):
        find_body_difference(listed)
    moved = Dump.objects.select_related("run", "segment").get(step=1)
    assert find_body_difference(moved) == ""
    body_path(moved.segment.path).unlink()
    assert "cannot be read" in find_body_difference(moved)


@pytest.mark.parametrize("change", ["text", "missing", "more"])
def test_a_difference_is_found(run: Run, change: str) -> None:
    rows = [generation("q", f"answer {number}") for number in range(10)]
    dump = index_file(run, lines(*rows), 1)
    changed = {"text": [*rows[:9], generation("q", "another")], "missing": rows[:9], "more": [*rows, generation()]}
    other = index_file(builders.run(run.project, "other", uid=""), lines(*changed[change]), 1)
    path, source = (raw_path(run.project_id, each.sha256) for each in (dump, other))
    path.write_bytes(source.read_bytes())
    assert "index the run again" in find_body_difference(dump)
