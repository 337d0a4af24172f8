"""Artifacts are checked before their bytes can be downloaded."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from rollouts.errors import StorageUnavailableError
from rollouts.maintenance import sweep
from rollouts.models import Artifact, Blob, Run
from rollouts.pins import artifact_check, artifacts
from tests.conftest import DATA
from tests.rollouts.support.artifacts import describe_files, encode_meta, register_artifact, upload_files
from tests.support.stored import blob_path

pytestmark = pytest.mark.django_db

BATCH = DATA / "verl_skip/main/qwen2-tiny_grpo_rl-acceptance/GBS8_N4_in128_out256/1/gen_batch.dp"


class PickledPrint:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("this must never run",)


def upload_and_check(run: Run, files: dict[str, bytes]) -> Artifact:
    artifact = upload_files(register_artifact(run, 3, files), files)
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    return artifact


def test_a_real_batch_with_its_json_is_ready(run: Run) -> None:
    artifact = upload_and_check(run, {"gen_batch.dp": BATCH.read_bytes(), "meta.json": encode_meta(3)})
    assert (artifact.state, artifact.message) == ("ready", "") and artifact.ready_at
    assert artifacts.explain_unavailability(artifact) == ""
    batch = Blob.objects.get(sha256=artifact.files["gen_batch.dp"]["sha256"])
    assert (batch.readable, batch.loadable, batch.reasons) == (True, True, [])


def test_a_pickle_that_would_call_a_function_makes_the_artifact_unsafe_with_the_reason(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = upload_and_check(run, {"gen_batch.dp": pickle.dumps(PickledPrint()), "meta.json": encode_meta(3)})
    assert artifact.state == "unsafe" and artifact.message.startswith("gen_batch.dp: ")
    assert "print" in artifact.message
    assert "not safe to load" in artifacts.explain_unavailability(artifact)
    assert "never run" not in capsys.readouterr().out


def test_a_batch_that_can_be_read_but_holds_a_name_that_is_not_on_the_list_is_unsafe(run: Run) -> None:
    artifact = upload_and_check(run, {"gen_batch.dp": BATCH.read_bytes().replace(b"scalar", b"scalax")})
    blob = Blob.objects.get()
    assert (blob.readable, blob.loadable) == (True, False) and "scalax" in blob.reasons[0]
    assert artifact.state == "unsafe" and "scalax" in artifact.message


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, pickle.dumps({"a": 1})])
def test_a_file_that_is_called_json_must_be_json(run: Run, body: bytes) -> None:
    artifact = upload_and_check(run, {"meta.json": body})
    assert artifact.state == "unsafe" and "called JSON and is none" in artifact.message


def test_a_pickle_is_unsafe_although_another_artifact_has_the_same_bytes_as_json(run: Run) -> None:
    body = pickle.dumps(PickledPrint(), protocol=0)
    upload_and_check(run, {"notes.json": body})
    assert upload_and_check(run, {"gen_batch.dp": body}).state == "unsafe"


def test_any_other_file_is_refused_because_a_trainer_might_unpickle_it(run: Run) -> None:
    assert upload_and_check(run, {"notes.txt": b"{}"}).state == "unsafe"


def test_checking_again_changes_nothing(run: Run) -> None:
    artifact = upload_and_check(run, {"meta.json": encode_meta(3)})
    artifact_check.check_artifact(artifact.pk)
    assert Artifact.objects.get().ready_at == artifact.ready_at
    artifact_check.check_artifact(artifact.pk + 99)


def test_an_artifact_is_checked_by_one_worker_and_sent_again_if_that_worker_died(run: Run) -> None:
    artifact = upload_files(register_artifact(run, 3), {"meta.json": encode_meta(3)})
    assert sweep.find_due_artifacts() == [artifact.pk]
    assert artifact.claim() and not artifact.claim()
    assert sweep.find_due_artifacts() == []
    Artifact.objects.update(due_at=timezone.now() - timedelta(seconds=1))
    assert sweep.find_due_artifacts() == [artifact.pk]
    artifact_check.check_artifact(artifact.pk)
    assert Artifact.objects.get().state == "ready" and sweep.find_due_artifacts() == []


def test_an_artifact_that_kills_its_worker_every_time_is_unsafe(run: Run) -> None:
    artifact = upload_files(register_artifact(run, 3), {"meta.json": encode_meta(3)})
    for _ in range(Artifact.MAX_TRIES):
        assert artifact.claim()
        Artifact.objects.update(due_at=timezone.now())
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    assert artifact.state == "unsafe" and "without an answer" in artifact.message


def test_bytes_that_cannot_be_read_now_are_checked_later(run: Run) -> None:
    files = {"gen_batch.dp": BATCH.read_bytes()}
    artifact = upload_files(register_artifact(run, 3, files), files)
    stored_file = blob_path(run.project_id, describe_files(files)["gen_batch.dp"]["sha256"])
    content = stored_file.read_bytes()
    stored_file.unlink()
    for _ in range(2 * Artifact.MAX_TRIES):  # a long outage of the storage is no reason to call it unsafe
        with pytest.raises(StorageUnavailableError):
            artifact_check.check_artifact(artifact.pk)
        Artifact.objects.update(due_at=timezone.now())
    artifact.refresh_from_db()
    assert artifact.state == "uploading"
    stored_file.write_bytes(content)
    Artifact.objects.update(due_at=timezone.now())
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    assert artifact.state == "ready"


def test_json_that_would_take_all_memory_is_not_read(run: Run) -> None:
    artifact = upload_and_check(run, {"meta.json": b"[" + b"[]," * artifact_check.MAX_JSON_VALUES + b"0]"})
    assert artifact.state == "unsafe" and "more than 10000000 values" in artifact.message


def test_an_artifact_whose_check_did_not_end_is_checked_again_when_it_is_reported_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"gen_batch.dp": BATCH.read_bytes()}

    def reach_limit(path: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(artifact_check.safe, "check_file_safety", reach_limit)
        artifact = upload_and_check(run, files)
    assert artifact.state == "unsafe" and "ROLLOUTDECK_MAX_WORKER_MEMORY_MB" in artifact.message
    assert register_artifact(run, 3, files).due
    artifact_check.check_artifact(artifact.pk)
    artifact.refresh_from_db()
    assert (artifact.state, artifact.message) == ("ready", "")
    unsafe = upload_and_check(run, {"evil.pt": pickle.dumps(PickledPrint())})
    assert unsafe.state == "unsafe" and not register_artifact(run, 3, {"evil.pt": pickle.dumps(PickledPrint())}).due


def test_a_file_that_needs_too_much_memory_is_unsafe_and_not_checked_again(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach_limit(path: object) -> None:
        raise MemoryError

    monkeypatch.setattr(artifact_check.safe, "check_file_safety", reach_limit)
    artifact = upload_and_check(run, {"gen_batch.dp": BATCH.read_bytes()})
    assert artifact.state == "unsafe" and not artifact.due
    assert f"needs more than {settings.MAX_WORKER_MEMORY_MB} MB of memory" in artifact.message
