"""Pinned steps are written unchanged to the folders that verl reads; a second pull follows the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.replay.folder import PULL_MANIFEST
from rollouts.models import Binding, Project, Run
from tests.rolloutdeck.replay.pull.plans import (
    CONFIG,
    TREE,
    RunCommand,
    build_expected_hashes,
    create_pin,
    hash_files,
    save_plan,
)
from tests.rollouts.support.push import generation, index_file, line
from tests.rollouts.support.verl_batches import ASYNC, V0, V1, V2
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_pinned_step_is_written_unchanged_to_its_target_and_the_flags_are_printed(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    assert pull() == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, f"{TREE}/3")
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        "trainer.use_v1=False",
        "trainer.experiment_name=grpo-2",
        "trainer.project_name=math",
        "data.train_batch_size=8",
        "actor_rollout_ref.rollout.n=4",
        "data.max_prompt_length=128",
        "data.max_response_length=256",
        "skip.rollout.enable=True",
        f"skip.rollout.dump_dir={tmp_path / 'into'}",
        "'skip.rollout.steps=[3]'",
        "skip.rollout.action=cache",
    ]
    assert "Step 3: step 1 of grpo-1, unknown: depends on " in result.err
    assert "ground truth, data source and uid from the live batch" in result.err
    assert f"ROLLOUTDECK_RUN_ID={new_run.uid}" in result.err
    assert str(Binding.objects.get(run=new_run).revision) == "default@1"


def test_the_manifest_of_a_pull_names_plan_run_project_trainer_and_files(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    pull()
    result = json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())
    assert (result["plan"], result["run"], result["project"], result["trainer"]) == (
        "default@1",
        new_run.uid,
        "math",
        "verl",
    )
    assert result["files"] == hash_files(tmp_path / "into")


def test_repeat_writes_each_step_as_a_hard_link_to_one_file(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 2), action="repeat")
    assert pull("--steps", "5") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, *(f"{TREE}/{step}" for step in (2, 3, 4, 5)))
    assert len({path.stat().st_ino for path in tmp_path.rglob("gen_batch.dp")}) == 1
    assert "'skip.rollout.steps=[2,3,4,5]'" in capsys.readouterr().out


def test_a_v1_step_keeps_its_inner_folders(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V1, "rollout_tq", parameter_sync_step=1), 1))
    assert pull("--set", "trainer.use_v1=True") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V1, f"{TREE}/1")
    assert "skip.rollout_tq.enable=True" in capsys.readouterr().out


def test_a_fully_async_prompt_is_written_to_its_feed_index(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, ASYNC, "async_rollout", prompts=1, rows=4), 7))
    assert pull("--set", "async_training.require_batches=1") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(ASYNC, "grpo-2_math/GBS1_N4_in128_out256/7")
    assert "'skip.async_rollout.steps=[7]'" in capsys.readouterr().out


def test_verl_0_8_gets_its_own_folders(
    pull: RunCommand, old_run: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**CONFIG, "actor_rollout_ref": {"rollout": {"n": 4, "skip": {"enable": False}}}}
    builders.run(project, "older", config=config)
    save_plan(owner, (create_pin(old_run, 1, owner, V2), 1))
    assert pull(run="older") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V2, f"{TREE}/genstep_000001")
    assert "actor_rollout_ref.rollout.skip.max_dump_step=1" in capsys.readouterr().out


def test_steps_of_verl_0_8_without_known_settings_get_its_folders(
    pull: RunCommand, old_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V2), 1))
    assert pull(run="grpo-8") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V2, "grpo-8_math/GBS8_N4_in128_out256/genstep_000001")
    result = capsys.readouterr()
    assert "actor_rollout_ref.rollout.skip.enable=True" in result.out and "trainer.use_v1" not in result.out
    assert "trainer: verl 0.8" in result.err


def test_a_folder_with_other_files_is_refused_and_no_binding_is_created(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "thesis.tex").write_text("x")
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    assert pull() == 2
    assert "is not empty and was not written by `pull`" in capsys.readouterr().err
    assert not Binding.objects.exists()


def test_a_second_pull_follows_the_plan_and_downloads_only_new_files(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = create_pin(old_run, 1, owner)
    save_plan(owner, (pin, 3))
    pull()
    save_plan(owner, (pin, 4))
    assert pull() == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, f"{TREE}/4")
    assert "0 bytes downloaded" in capsys.readouterr().err


def test_a_run_that_has_begun_keeps_the_revision_of_its_plan(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = create_pin(old_run, 1, owner)
    save_plan(owner, (pin, 3))
    pull()
    index_file(new_run, line(generation(step=1)))
    save_plan(owner, (pin, 4))
    assert pull() == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, f"{TREE}/3")
    capsys.readouterr()
    assert pull("--plan", "default@2") == 2
    assert "is bound to default@1" in capsys.readouterr().err
