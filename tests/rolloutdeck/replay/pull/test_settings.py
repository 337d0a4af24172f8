"""`pull` takes the settings of a run from the command line, its config or the pinned run, and compares them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rollouts.models import Binding, Project, Run
from tests.rolloutdeck.replay.pull.plans import (
    CONFIG,
    RunCommand,
    build_expected_hashes,
    create_pin,
    hash_files,
    save_plan,
)
from tests.rollouts.support.verl_batches import V0, V1
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)


def test_settings_on_the_command_line_name_the_folder(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    assert pull("--set", "trainer.experiment_name=other", "data.gen_batch_size=8") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, "other_math/GBS8_N4_in128_out256/3")
    assert "trainer.experiment_name=other" in capsys.readouterr().out


def test_pull_asks_for_the_settings_of_the_folder_name_that_the_config_lacks(
    pull: RunCommand, old_run: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builders.run(project, "bare", config={"data": {"train_batch_size": 8}})
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    assert pull(run="bare") == 2
    result = capsys.readouterr().err
    assert "data.max_response_length, trainer.experiment_name, trainer.project_name; give them with --set" in result
    assert not (tmp_path / "into").exists()


def test_a_run_with_unknown_settings_is_assumed_to_have_those_of_the_pinned_run(
    pull: RunCommand, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"experiment_name": "qwen", "project_name": "own-project", "use_v1": False}
    source = builders.run(project, "grpo-1", config={**CONFIG, "trainer": names})
    save_plan(owner, (create_pin(source, 1, owner), 3))
    assert pull(run="grpo-3") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, "qwen_own-project/GBS8_N4_in128_out256/3")
    result = capsys.readouterr()
    lines = result.out.splitlines()
    assert {"trainer.experiment_name=qwen", "trainer.project_name=own-project", "trainer.use_v1=False"} <= set(lines)
    assert "Assuming the settings of grpo-1" in result.err and "  trainer.project_name=own-project\n" in result.err
    assert "checkpoints: those of this experiment" in result.err


def test_settings_from_the_user_are_not_reported_as_assumptions(
    pull: RunCommand, new_run: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(new_run, 1, owner), 3))
    assert pull("--set", "trainer.experiment_name=other", "trainer.project_name=new project", run="grpo-3") == 0
    result = capsys.readouterr()
    assert "  trainer." not in result.err.replace("  trainer.use_v1", "") and "checkpoints" not in result.err
    assert "'trainer.project_name=\"new project\"'" in result.out


def test_without_a_config_the_shape_is_that_of_the_pinned_batch(
    pull: RunCommand, old_run: Run, project: Project, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V1, "rollout_tq", parameter_sync_step=1), 3))
    assert pull("--set", "trainer.experiment_name=other", run="grpo-3") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V1, "other_math/GBS8_N4_in128_out256/3")
    assert "Assuming batches like grpo-1" in capsys.readouterr().err


def test_a_run_that_does_not_exist_is_created_with_the_given_config(
    pull: RunCommand, old_run: Run, project: Project, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    (tmp_path / "next.json").write_text(json.dumps(CONFIG))
    assert pull("--config", str(tmp_path / "next.json"), run="grpo-9") == 0
    created = Run.objects.get(name="grpo-9")
    assert created.config["trainer.experiment_name"] == "grpo-2"
    assert Binding.objects.filter(run=created).exists()


def test_pull_can_run_again_for_a_run_that_it_created(
    pull: RunCommand, old_run: Run, owner: User, tmp_path: Path
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    for _ in range(2):
        assert pull("--set", "trainer.experiment_name=other", run="grpo-9") == 0
    assert hash_files(tmp_path / "into") == build_expected_hashes(V0, "other_math/GBS8_N4_in128_out256/3")


def test_a_dump_of_another_trainer_is_an_error_and_nothing_is_written(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner, V1, "rollout_tq"), 3))
    assert pull() == 2
    result = capsys.readouterr().err
    assert "a rollout_tq dump of the V1 trainer; this run's V0 trainer reads rollout only" in result
    assert "No step of the plan default@1 can be replayed" in result
    assert not (tmp_path / "into").exists()
    assert not Binding.objects.exists()


def test_a_step_that_does_not_fit_is_skipped_or_stops_the_pull(
    pull: RunCommand, old_run: Run, new_run: Run, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = (create_pin(old_run, 1, owner, rows=64), 2), (create_pin(old_run, 2, owner), 3)
    save_plan(owner, *entries)
    assert pull() == 2
    message = capsys.readouterr().err
    assert "The plan default@1 has 1 conflict: no run can replay all its steps." in message
    assert "target step 3 (step 2 of grpo-1): rows per step 32; the plan's other steps have 64" in message
    assert not list(tmp_path.rglob("gen_batch.dp"))
    assert pull("--skip-conflicts") == 0
    assert {path.parent.name for path in tmp_path.rglob("gen_batch.dp")} == {"3"}
    assert "Target step 2 (step 1 of grpo-1) is skipped: rows: 64 pinned, 32 requested." in capsys.readouterr().err
    Binding.objects.all().delete()
    save_plan(owner, *entries, on_mismatch="stop")
    assert pull("--skip-conflicts") == 2
    assert "The plan default@2 stops at a mismatch" in capsys.readouterr().err


def test_the_error_for_an_empty_plan_says_how_to_fill_it(
    pull: RunCommand, new_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = "is empty. Pin a step on its page and give it a target step in the plan."
    assert pull() == 2 and empty in capsys.readouterr().err
    assert pull("--run", "not-yet-there") == 2  # whose config is not known
    message = capsys.readouterr().err
    assert empty in message and "--set" not in message
    assert not Run.objects.filter(name="not-yet-there").exists()


def test_an_unknown_plan_is_an_error_that_names_the_others_and_creates_no_run(
    pull: RunCommand, old_run: Run, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (create_pin(old_run, 1, owner), 3))
    for name in ("typo", "typo@1"):
        assert pull("--plan", name, run="grpo-9") == 2
        assert "There is no replay plan 'typo' in math. Available: default." in capsys.readouterr().err
    assert not Run.objects.filter(name="grpo-9").exists()
    assert pull("--plan", "default@7", run="grpo-9") == 2


@pytest.mark.parametrize(
    ("words", "expected"), [(("--trainer", "rllm"), "Unknown trainer 'rllm'"), (("--steps", "0"), "at least 1")]
)
def test_invalid_options_are_errors(
    pull: RunCommand, words: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pull(*words) == 2
    assert expected in capsys.readouterr().err
