"""How long the bytes of artifacts are kept."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from rollouts.errors import ConflictError, StorageUnavailableError
from rollouts.maintenance import sweep
from rollouts.models import Artifact, Blob, Pin, Project, Run
from rollouts.pins import artifact_check, artifacts, file_requests, pins
from rollouts.replay import bindings, plans
from rollouts.runs import actions
from rollouts.storage import access, blobs, store_image
from tests.rollouts.support.artifacts import register_artifact, upload_files
from tests.support import builders
from tests.support.stored import StoredPath, blob_path, list_stored

pytestmark = pytest.mark.django_db

FILES = {"meta.json": b"{}"}


@pytest.fixture
def run(project: Project) -> Run:
    return builders.run(project, "source")


def create_artifact(run: Run, step: int = 3, **more: object) -> Artifact:
    artifact = upload_files(register_artifact(run, step, FILES, **more), FILES)
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    return artifact


def list_blob_files() -> list[StoredPath]:
    return list_stored("blobs/")


def remove_pin_days_ago(row: Pin, owner: User, days: int) -> None:
    pins.remove_pin(row, owner)
    Pin.objects.filter(pk=row.pk).update(removed_at=timezone.now() - timedelta(days=days))


def test_bytes_of_a_removed_pin_are_deleted_after_a_week_and_can_be_uploaded_again(
    run: Run, owner: User, data_dir: Path
) -> None:
    artifact, row = create_artifact(run), pins.pin_step(run, 3, owner)[0]
    assert sweep.delete_unpinned_bytes() == 0
    remove_pin_days_ago(row, owner, days=6)
    assert sweep.delete_unpinned_bytes() == 0 and len(list_blob_files()) == 1
    remove_pin_days_ago(row, owner, days=8)
    assert sweep.delete_unpinned_bytes() == 1 and list_blob_files() == []
    artifact.refresh_from_db()
    assert (artifact.state, artifact.missing, Blob.objects.count()) == ("waiting", 1, 0)
    assert file_requests.list_requested_files(run) == []
    pins.pin_step(run, 3, owner)
    assert [file.artifact for file in file_requests.list_requested_files(run)] == [artifact.key]
    assert create_artifact(run).state == "ready"


def test_bytes_that_were_sent_without_a_pin_are_kept(run: Run, owner: User, data_dir: Path) -> None:
    create_artifact(run, send_now=True)
    remove_pin_days_ago(pins.pin_step(run, 3, owner)[0], owner, days=8)
    assert sweep.delete_unpinned_bytes() == 0 and len(list_blob_files()) == 1


def test_a_file_that_another_artifact_has_too_is_kept(run: Run, owner: User, data_dir: Path) -> None:
    create_artifact(run)
    other = create_artifact(builders.run(run.project, "other"))
    remove_pin_days_ago(pins.pin_step(run, 3, owner)[0], owner, days=8)
    assert sweep.delete_unpinned_bytes() == 1 and len(list_blob_files()) == 1
    assert artifacts.list_missing_hashes(other) == []


def test_bytes_of_a_plan_are_kept_while_a_run_that_is_bound_to_it_goes_on(
    run: Run, owner: User, data_dir: Path
) -> None:
    create_artifact(run)
    bound = builders.run(run.project, "next")
    row, _ = plans.pin_into_plan(run, 3, owner, target_step=1)
    bindings.bind_run(bound)
    plans.save_plan(run.project, "default", owner, if_match=1, action="cache")
    remove_pin_days_ago(row, owner, days=8)
    assert sweep.delete_unpinned_bytes() == 0
    Run.objects.filter(pk=bound.pk).update(outcome="finished")
    assert sweep.delete_unpinned_bytes() == 1 and list_blob_files() == []


def test_a_run_with_pins_is_moved_to_the_trash_only_by_force(run: Run, owner: User) -> None:
    register_artifact(run, 3)
    row, _ = pins.pin_step(run, 3, owner)
    with pytest.raises(ConflictError, match="Pinned steps: 1. Remove the pins first"):
        actions.move_run_to_trash(run, owner)
    pins.remove_pin(row, owner)
    assert actions.move_run_to_trash(run, owner).deleted_at
    actions.restore_run(run, owner)
    pins.pin_step(run, 3, owner)
    assert actions.move_run_to_trash(run, owner, force=True).deleted_at


def move_to_trash_eight_days_ago(run: Run, owner: User) -> None:
    actions.move_run_to_trash(run, owner, force=True)
    Run.objects.filter(pk=run.pk).update(deleted_at=timezone.now() - timedelta(days=8))


def test_bytes_of_a_step_that_is_pinned_again_during_the_cleanup_are_kept(
    run: Run, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, row = create_artifact(run), pins.pin_step(run, 3, owner)[0]
    remove_pin_days_ago(row, owner, days=8)
    (listed,) = sweep.find_unpinned_artifacts()
    pins.pin_step(run, 3, owner)
    assert not sweep.delete_artifact_bytes(listed)
    artifact.refresh_from_db()
    assert artifact.state == "ready" and len(list_blob_files()) == 1


def test_a_run_that_is_restored_during_the_cleanup_is_kept(run: Run, owner: User) -> None:
    move_to_trash_eight_days_ago(run, owner)
    (listed,) = sweep.find_expired_runs()
    actions.restore_run(listed, owner)
    assert not sweep.delete_expired_run(listed)
    assert Run.objects.get().deleted_at is None


def test_an_expired_run_is_deleted_with_its_artifacts_pins_and_plan_entries(
    run: Run, owner: User, data_dir: Path
) -> None:
    create_artifact(run)
    stored = builders.run(run.project, "kept")
    register_artifact(stored, 4)
    plans.pin_into_plan(run, 3, owner, target_step=1)
    plans.pin_into_plan(stored, 4, owner, target_step=2)
    move_to_trash_eight_days_ago(run, owner)
    assert sweep.empty_trash() == 1
    assert (Artifact.objects.count(), Blob.objects.count(), list_blob_files()) == (1, 0, [])
    assert [entry.target_step for entry in plans.load_plan_entries(plans.find_current_revision(run.project))] == [2]


def test_a_run_that_is_being_replayed_stays_in_the_trash_until_the_replay_ends(run: Run, owner: User) -> None:
    create_artifact(run)
    bound = builders.run(run.project, "next")
    plans.pin_into_plan(run, 3, owner, target_step=1)
    bindings.bind_run(bound)
    move_to_trash_eight_days_ago(run, owner)
    assert sweep.empty_trash() == 0
    Run.objects.filter(pk=bound.pk).update(outcome="failed")
    assert sweep.empty_trash() == 1


def test_an_expired_run_that_is_bound_to_its_own_plan_is_deleted(run: Run, owner: User) -> None:
    register_artifact(run, 3)
    plans.pin_into_plan(run, 3, owner, target_step=1)
    bindings.bind_run(run)
    move_to_trash_eight_days_ago(run, owner)
    assert sweep.empty_trash() == 1


def test_bytes_that_are_deleted_during_their_upload_are_requested_again(
    run: Run, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_artifact(run)
    Artifact.objects.all().delete()
    blob, again = Blob.objects.get(), tmp_path / "again"
    again.write_bytes(FILES["meta.json"])
    # The blob is deleted after its file is touched and before its row is written.
    monkeypatch.setattr(access, "touch_file", lambda key: blobs.delete_unused_blobs([blob]))
    with pytest.raises(StorageUnavailableError, match="upload it again"):
        blobs.store_blob(run.project_id, blob.sha256, again, blob.bytes)
    assert (list_blob_files(), Blob.objects.count()) == ([], 0)
    monkeypatch.undo()
    again.write_bytes(FILES["meta.json"])
    assert blobs.store_blob(run.project_id, blob.sha256, again, blob.bytes) and len(list_blob_files()) == 1


def test_images_of_deleted_runs_and_projects_are_removed(run: Run) -> None:
    kept = store_image(run.image_owner, b"1"), store_image(run.project.image_owner, b"2")
    store_image("run-999", b"3")
    store_image("project-999", b"4")
    assert sweep.delete_orphan_images() == 2
    assert sorted(path.name for path in list_stored("images/")) == sorted(kept)


def test_old_orphan_files_and_old_unused_blob_rows_are_deleted(run: Run, data_dir: Path) -> None:
    create_artifact(run)
    [used] = list_blob_files()
    orphan = blob_path(run.project_id, "ab" * 32)
    orphan.write_bytes(b"x")
    assert sweep.delete_orphan_blobs() == 0
    for path in (used, orphan):
        path.set_age(sweep.ORPHAN_LIFETIME_SECONDS + 9)
    assert sweep.delete_orphan_blobs() == 1
    assert list_blob_files() == [used]
    Artifact.objects.all().delete()
    Blob.objects.update(created_at=timezone.now() - timedelta(hours=2))
    assert sweep.delete_orphan_blobs() == 1
    assert list_blob_files() == []


@pytest.mark.one_database
def test_more_files_than_sqlite_has_parameters_are_compared_with_their_rows(run: Run, data_dir: Path) -> None:
    create_artifact(run)
    for number in range(20):
        blob_path(run.project_id, f"{number:064}").write_bytes(b"x")
    for path in list_blob_files():
        path.set_age(sweep.ORPHAN_LIFETIME_SECONDS + 9)
    before = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 10)
    try:
        assert sweep.delete_orphan_blobs() == 20 and len(list_blob_files()) == 1
    finally:
        connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
