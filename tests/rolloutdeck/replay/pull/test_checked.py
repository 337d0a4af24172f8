"""`pull` checks files before a trainer gets them: it skips unsafe ones and repairs others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.replay import pull as pull_module
from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.safe_pickle import SafePickleError
from rollouts.models import Artifact, Binding, Run
from rollouts.pins import artifact_check, pins
from tests.rolloutdeck.replay.pull.plans import (
    FACTS,
    TREE,
    RunCommand,
    build_expected_hashes,
    create_pin,
    hash_files,
    save_plan,
)
from tests.rollouts.support.artifacts import encode_meta, register_artifact, upload_files
from tests.rollouts.support.verl_batches import COLOCATED, V0, V1, read_files
from tests.support.stored import blob_path

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_dump_that_would_stop_the_trainer_is_repaired_and_the_repair_is_printed(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 3, owner, COLOCATED), 3), (create_pin(old_run, 4, owner, COLOCATED), 5))
    assert pull() == 0
    result = capsys.readouterr().err
    assert "gen_batch.dp of step 3 of grpo-1 is replayed without uid: V0 would fail on them." in result
    assert "of step 4 of grpo-1 is replayed without uid, data_source, reward_model, extra_info" in result
    placed = hash_files(tmp_path / "into")
    unchanged_hash = build_expected_hashes(COLOCATED, "x")["x/gen_batch.dp"]
    assert len({unchanged_hash, *(placed[f"{TREE}/{step}/gen_batch.dp"] for step in (3, 5))}) == 3
    assert json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())["files"] == placed


def test_a_dump_that_cannot_be_repaired_is_skipped(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def refuse(*_: Any) -> None:
        raise SafePickleError("a value of torch.Size can't be written")

    monkeypatch.setattr(pull_module.rewrite, "drop_columns", refuse)
    save_plan(owner, (create_pin(old_run, 3, owner, COLOCATED), 3), (create_pin(old_run, 4, owner), 5))
    assert pull() == 0
    reason = "gen_batch.dp can't be repaired: a value of torch.Size can't be written"
    assert f"Target step 3 (step 3 of grpo-1) is skipped: {reason}" in capsys.readouterr().err
    assert {path.parent.name for path in (tmp_path / "into" / TREE).rglob("gen_batch.dp")} == {"5"}


def test_pull_fails_while_the_files_of_a_step_are_not_on_the_server(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_artifact(old_run, 1, read_files(V0), facts={"role": "rollout", **FACTS})
    save_plan(owner, (pins.pin_step(old_run, 1, owner)[0], 3))
    assert pull() == 2
    assert "The files of step 1 of grpo-1 are not on the server yet (waiting)" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


def test_an_unsafe_dump_is_not_given_to_a_trainer(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": b"cos\nsystem\n(S'true'\ntR.", "meta.json": b"{}"}
    artifact = upload_files(register_artifact(old_run, 1, files, facts={"role": "rollout", **FACTS}), files)
    artifact_check.check_artifact(artifact.pk)
    save_plan(owner, (pins.pin_step(old_run, 1, owner)[0], 3))
    assert pull() == 2
    assert "its files are unsafe" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))


def test_pull_checks_files_again_that_the_server_calls_ready(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": b"cos\nsystem\n(S'true'\ntR.", "meta.json": b"{}"}
    artifact = upload_files(register_artifact(old_run, 1, files, facts={"role": "rollout", **FACTS}), files)
    Artifact.objects.filter(pk=artifact.pk).update(state=Artifact.State.READY)
    save_plan(owner, (pins.pin_step(old_run, 1, owner)[0], 3))
    assert pull() == 2
    assert "gen_batch.dp is not safe to load" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))
    assert not Binding.objects.exists()


def test_files_that_were_damaged_on_the_server_are_not_written(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    blob = blob_path(old_run.project_id, hashlib.sha256((V0 / "gen_batch.dp").read_bytes()).hexdigest())
    damaged = bytearray(blob.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    blob.write_bytes(damaged)
    assert pull() == 2
    assert "has the sha256" in capsys.readouterr().err
    assert not list(tmp_path.rglob("gen_batch.dp"))


def test_a_file_of_another_format_than_its_name_says_is_not_written(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"gen_batch.dp": read_files(V1)["0/tq_batch.pt"], "meta.json": encode_meta(1)}
    artifact_check.check_artifact(
        upload_files(register_artifact(old_run, 1, files, facts={"role": "rollout", **FACTS}), files).pk
    )
    save_plan(owner, (pins.pin_step(old_run, 1, owner)[0], 3))
    assert pull() == 2
    assert "gen_batch.dp is not a gen_batch.dp file: its format is tq_batch." in capsys.readouterr().err
