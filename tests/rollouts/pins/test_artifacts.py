"""Artifacts are registered with a manifest, requested and uploaded."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from rollouts.errors import ConflictError, InvalidInputError
from rollouts.models import Artifact, Blob, Run
from rollouts.pins import artifacts, file_requests, pins
from rollouts.pins.manifests import ArtifactManifest
from rollouts.replay import bindings
from rollouts.storage import blobs
from tests.rollouts.support.artifacts import (
    build_manifest,
    compute_key,
    describe_files,
    encode_meta,
    register_artifact,
    upload_files,
)
from tests.support import builders

pytestmark = pytest.mark.django_db

FILES = {"meta.json": encode_meta(3), "gen_batch.dp": b"a batch"}
ORIGIN = {"host": "node-1", "path": "/dumps/3", "command": "rolloutdeck import /dumps"}


def test_an_artifact_is_known_by_its_manifest_and_waits_for_its_bytes(run: Run) -> None:
    artifact, created = artifacts.store_manifest(
        run, "files", build_manifest(FILES, 3, facts={"rows": 32}, origin=ORIGIN)
    )
    assert (artifact.key, created, artifact.state) == (compute_key(FILES), True, "waiting")
    assert (artifact.bytes, artifact.missing, artifact.origin) == (sum(map(len, FILES.values())), 2, ORIGIN)
    assert artifact.facts == {"rows": 32, "role": "rollout"}


def test_an_artifact_that_is_reported_again_has_the_newest_origin_and_all_facts(run: Run) -> None:
    first = register_artifact(run, 3, FILES, facts={"rows": 32}, send_now=True)
    again, created = artifacts.store_manifest(
        run, "later", build_manifest(FILES, 4, origin=ORIGIN, facts={"prompts": 8})
    )
    assert (again.pk, created, again.step, again.attempt.key) == (first.pk, False, 3, "files")
    assert (again.origin, again.send_now) == (ORIGIN, True)
    assert again.facts == {"rows": 32, "prompts": 8, "role": "rollout"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"files": {"../x": {"sha256": "a" * 64, "bytes": 1}}}, "files"),
        ({"files": {}}, "files"),
        ({"role": "weights"}, "role"),
        ({"step": None}, "step"),
        ({"step": -1}, "step"),
        ({"split": "test"}, "split"),
        ({"step_kind": "epoch"}, "step_kind"),
        ({"facts": [1]}, "facts"),
        ({"facts": {"x": "y" * 40_000}}, "facts"),
        ({"origin": "node-1"}, "origin"),
        ({"origin": {"host": "a\x00b"}}, "origin"),
        ({"send_now": "perhaps"}, "send_now"),
    ],
)
def test_an_invalid_manifest_is_refused_with_the_name_of_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        ArtifactManifest.from_request({"role": "rollout", "step": 1, "files": describe_files(FILES), **wrong})
    assert refused.value.field == field


def test_an_artifact_is_due_for_its_check_when_its_last_file_has_arrived(run: Run) -> None:
    artifact = register_artifact(run, 3, FILES)
    upload_files(artifact, {"meta.json": FILES["meta.json"]})
    assert (artifact.state, artifact.missing, artifact.due) == ("uploading", 1, False)
    assert artifacts.list_missing_hashes(artifact) == [describe_files(FILES)["gen_batch.dp"]["sha256"]]
    assert artifacts.count_received_bytes(artifact) == len(FILES["meta.json"])
    upload_files(artifact, {"gen_batch.dp": FILES["gen_batch.dp"]})
    assert (artifact.state, artifact.missing, artifact.due) == ("uploading", 0, True)
    assert list(Artifact.objects.due()) == [artifact]
    with blobs.open_blob(run.project_id, describe_files(FILES)["gen_batch.dp"]["sha256"]) as file:
        assert file.read() == b"a batch"


def test_bytes_that_the_project_has_are_not_requested_and_those_of_another_project_are(run: Run) -> None:
    upload_files(register_artifact(run, 3, FILES), FILES)
    same = register_artifact(builders.run(run.project, "second"), 3, FILES)
    other = register_artifact(builders.run(builders.project("code"), "third"), 3, FILES)
    assert (artifacts.list_missing_hashes(same), same.due) == ([], True)
    assert len(artifacts.list_missing_hashes(other)) == 2
    assert Blob.objects.count() == 2


def test_files_are_requested_only_for_a_pin_or_if_the_sender_wants_to_send_now(run: Run, owner: User) -> None:
    waiting, sent_now = (
        register_artifact(run, 3, FILES, origin=ORIGIN),
        register_artifact(run, 4, origin=ORIGIN, send_now=True),
    )
    assert [file.artifact for file in file_requests.list_requested_files(run)] == [sent_now.key]
    pins.pin_step(run, 3, owner)
    expected = file_requests.list_requested_files(run)
    assert [file.artifact for file in expected] == [waiting.key, waiting.key, sent_now.key]
    assert expected[0].path == "gen_batch.dp" and (expected[0].bytes, expected[0].received) == (7, 0)
    upload_files(waiting, {"gen_batch.dp": FILES["gen_batch.dp"]})
    assert [file.path for file in file_requests.list_requested_files(run)] == ["meta.json", "meta.json"]


def test_a_host_is_asked_for_no_files_of_another_host_and_its_poll_is_stored(run: Run) -> None:
    register_artifact(run, 3, FILES, origin=ORIGIN, send_now=True)
    register_artifact(run, 4, origin={**ORIGIN, "host": "node-2"}, send_now=True)
    register_artifact(run, 5, send_now=True)
    assert {file.path for file in file_requests.list_requested_files(run, "node-3")} == {"meta.json"}
    assert len(file_requests.list_requested_files(run, "node-1")) == 3
    run.refresh_from_db()
    assert set(run.pollers) == {"node-1", "node-3"}
    asked_at = file_requests.find_last_poll(run, "node-1")
    assert asked_at and timezone.now() - asked_at < timedelta(seconds=5)
    assert file_requests.find_last_poll(run, "node-2") is None


def test_only_the_hosts_that_polled_last_are_stored(run: Run) -> None:
    for number in range(file_requests.MAX_POLLING_HOSTS + 3):
        file_requests.list_requested_files(run, f"node-{number}")
    run.refresh_from_db()
    assert len(run.pollers) == file_requests.MAX_POLLING_HOSTS and "node-0" not in run.pollers


def test_a_file_that_two_artifacts_share_is_sent_once_and_is_there_for_both(run: Run) -> None:
    first = register_artifact(run, 1, {"a.json": b"{}"}, send_now=True)
    second = register_artifact(run, 2, {"b.json": b"{}"}, send_now=True)
    assert len(file_requests.list_requested_files(run)) == 1
    upload_files(first, {"a.json": b"{}"})
    assert file_requests.list_requested_files(run) == []
    assert artifacts.refresh_artifact(second).due


def test_an_artifact_that_its_node_lost_is_gone_until_it_is_reported_again(run: Run) -> None:
    artifact = register_artifact(run, 3, FILES)
    gone = register_artifact(run, 3, FILES, gone="gen_batch.dp was rewritten.")
    assert (gone.pk, gone.state, gone.message) == (artifact.pk, "gone", "gen_batch.dp was rewritten.")
    assert register_artifact(run, 3, FILES).state == "waiting"


def test_uploaded_bytes_stay_when_their_node_loses_them(run: Run) -> None:
    artifact = upload_files(register_artifact(run, 3, FILES), FILES)
    Artifact.objects.update(state="ready")
    assert register_artifact(run, 3, FILES, gone="the disk was emptied").state == "ready"
    assert artifacts.list_missing_hashes(artifact) == []


def test_a_file_whose_artifact_is_forgotten_while_it_arrives_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = register_artifact(run, 3, FILES)

    def store_blob(*values: Any) -> Blob:
        Artifact.objects.filter(pk=artifact.pk).update(state="gone", forgotten_at=timezone.now())
        return blobs.store_blob(*values)

    monkeypatch.setattr(artifacts, "store_blob", store_blob)
    with pytest.raises(ConflictError, match="was forgotten"):
        upload_files(artifact, FILES)
    assert not Blob.objects.exists()


def test_secrets_in_the_command_are_not_stored(run: Run) -> None:
    command = "ROLLOUTDECK_TOKEN=rd_abcdefghijklmnopqrstuvwxyz rolloutdeck watch"
    artifact = register_artifact(run, 3, FILES, origin={**ORIGIN, "command": command})
    assert "abcdefgh" not in json.dumps(artifact.origin)


def test_a_shared_file_that_was_uploaded_before_does_not_set_the_state_uploading(run: Run) -> None:
    upload_files(register_artifact(run, 3, FILES), {"meta.json": FILES["meta.json"]})
    other = register_artifact(builders.run(run.project, "second"), 3, {**FILES, "gen_batch.dp": b"another"})
    assert (other.state, other.missing) == ("waiting", 1)


def test_an_artifact_with_a_wrong_size_in_its_manifest_waits_for_its_bytes(run: Run) -> None:
    upload_files(register_artifact(run, 3, FILES), FILES)
    [row] = describe_files({"meta.json": encode_meta(3)}).values()
    manifest = {"role": "rollout", "step": 4, "files": {"meta.json": {**row, "bytes": 99}}, "send_now": True}
    artifact, _ = artifacts.store_manifest(run, "files", ArtifactManifest.from_request(manifest))
    assert (artifact.due, artifacts.list_missing_hashes(artifact)) == (False, [row["sha256"]])
    assert [file.bytes for file in file_requests.list_requested_files(run)] == [99]


def test_the_size_of_facts_is_limited(run: Run) -> None:
    register_artifact(run, 3, FILES, facts={"first": "x" * 30_000})
    with pytest.raises(InvalidInputError, match="facts"):
        register_artifact(run, 3, FILES, facts={"second": "x" * 30_000})
    bindings.bind_run(run, facts={"first": "x" * 30_000})
    with pytest.raises(InvalidInputError, match="facts"):
        bindings.bind_run(run, facts={"second": "x" * 30_000})


def test_the_number_of_requested_files_is_limited(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_requests, "MAX_REQUESTED_FILES", 3)
    for step in (3, 1, 2):
        register_artifact(run, step, {"meta.json": encode_meta(step), "gen_batch.dp": b"%d" % step}, send_now=True)
    assert len(file_requests.list_requested_files(run)) == 4
    first = Artifact.objects.get(step=1)
    upload_files(first, {"meta.json": encode_meta(1), "gen_batch.dp": b"1"})
    keys = {file.artifact for file in file_requests.list_requested_files(run)}
    assert keys == set(Artifact.objects.exclude(pk=first.pk).values_list("key", flat=True))
