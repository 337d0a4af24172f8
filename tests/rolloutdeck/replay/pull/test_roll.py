"""Batches of ROLL are imported, pinned and written under the numbers of the steps that replay them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from dashboard.pages.pins import run_commands
from rolloutdeck.safe_pickle.batches.batch import open_roll_batch
from rollouts.models import Artifact, Project, Run, Sample
from rollouts.replay import plans
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.replay.pull.imported import (
    RunCommand,
    build_command_runner,
    flag_samples,
    import_folder,
    pin_step,
    sha256,
)
from tests.rolloutdeck.replay.pull.plans import hash_files, save_plan

pytestmark = pytest.mark.django_db(transaction=True)

DATA = Path(__file__).parents[3] / "data/roll"
STEP = DATA / "mock/train/step_000001.pkl"
SHAPE = ("--set", "rollout_batch_size=8", "num_return_sequences_in_group=4", "prompt_length=128", "response_length=256")


@pytest.fixture
def run_command(site: Site, secret: str, project: Project, tmp_path: Path) -> RunCommand:
    run = build_command_runner(site, secret, tmp_path / "into", "roll")
    for name in ("mock/train/step_000001.pkl", "mock/val/step_000001.pkl"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(STEP, tmp_path / "out" / name)
    (tmp_path / "out/rows").mkdir()
    shutil.copy(DATA / "rlvr_jsonl/rollout_dump_data.step_1.jsonl", tmp_path / "out/rows")
    import_folder(run, tmp_path / "out")
    return run


def test_all_repeated_steps_are_written_unchanged_to_one_folder(
    run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = Artifact.objects.all()
    assert (row.step, row.split, row.state, row.facts["rows"]) == (1, "train", "ready", 32)
    save_plan(owner, (pin_step(1, owner), 0), action="repeat")
    capsys.readouterr()
    assert run_command("pull", *SHAPE, "max_steps=3") == 0
    names = [f"train/step_{step:06d}.pkl" for step in range(3)]
    assert hash_files(tmp_path / "into") == dict.fromkeys(names, sha256(STEP))
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        "rollout_mock:",
        "  enable: true",
        "  mode: mock",
        f'  dump_dir: "{tmp_path / "into"}"',
        "max_steps: 3",
        "validation: null",
    ]
    assert "Step 0-2: step 1 of old, will replay (same settings; " in result.err
    assert "Validation would load its own files" in result.err
    assert "to this run: rolloutdeck watch FOLDER --project math --run " in result.err and "RUN_ID" not in result.err
    assert Run.objects.get(name="new").framework == "roll"


def test_samples_of_an_imported_batch_are_indexed_before_a_pin(run_command: RunCommand) -> None:
    train = Run.objects.get(name="old").steps.get(split="train", step=1)
    assert train.samples == 32
    assert train.facets["tokens"] == 32  # the tokens are from the batch, the text from the rows


def test_flagged_rows_get_a_response_mask_of_zeros_and_nothing_else_changes(
    run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = Sample.objects.filter(step__split="train", visible=True).order_by("ordinal")
    flag_samples(owner, rows[3], rows[9])
    save_plan(owner, (pin_step(1, owner), 0), on_selected="exclude")
    capsys.readouterr()
    assert run_command("pull", *SHAPE, "max_steps=1") == 0
    message = capsys.readouterr().err
    assert "is replayed with response_mask 0 in its 2 flagged rows" in message
    (path,) = (tmp_path / "into/train").iterdir()
    with open_roll_batch(STEP) as before, open_roll_batch(path) as after:
        weights = [sum(after.numbers("response_mask", row) or []) for row in range(after.rows)]
        assert [row for row, weight in enumerate(weights) if not weight] == [3, 9]
        assert [before.numbers("input_ids", row) for row in range(32)] == [
            after.numbers("input_ids", row) for row in range(32)
        ]


def test_a_run_of_another_shape_is_refused_with_the_fact_that_differs(
    run_command: RunCommand, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (pin_step(1, owner), 0))
    capsys.readouterr()
    assert run_command("pull", *SHAPE[:-1], "response_length=512") == 2
    assert "max_response_length: 256 pinned, 512 requested" in capsys.readouterr().err


def test_a_run_with_unknown_settings_is_assumed_to_match_the_pinned_batch(
    run_command: RunCommand, owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (pin_step(1, owner), 0), (pin_step(1, owner), 2))
    assert plans.find_current_revision(Project.objects.get()) is not None
    capsys.readouterr()
    assert run_command("pull") == 0
    result = capsys.readouterr()
    assert "max_steps: 1" in result.out.splitlines()
    assert "max_steps is 1, as step 1 has none, and later steps are not reached" in result.err


def test_a_plan_without_a_file_for_the_first_step_is_refused_before_a_download(
    run_command: RunCommand, owner: User, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (pin_step(1, owner), 2))
    capsys.readouterr()
    assert run_command("pull", *SHAPE, "max_steps=5") == 2
    assert "the plan has none for step 0. Pin that step too" in capsys.readouterr().err
    assert not (tmp_path / "into").exists()


def test_the_command_on_the_plans_page_writes_the_pinned_step(
    run_command: RunCommand, owner: User, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(owner, (pin_step(1, owner), 0))
    ((rendered,),) = run_commands.build_run_commands(project, "default", plans.find_current_revision(project), 1)
    _, command, *words = shlex.split(rendered.lines)
    monkeypatch.chdir(tmp_path)
    assert words[words.index("--trainer") + 1] == "roll"
    assert run_command(command, *words[2:]) == 0
    assert hash_files(tmp_path / "replay") == {"train/step_000000.pkl": sha256(STEP)}


def test_a_validation_batch_becomes_a_step_without_an_artifact(run_command: RunCommand, owner: User) -> None:
    assert not Artifact.objects.filter(split="eval").exists()
    assert Run.objects.get(name="old").steps.filter(split="eval", step=1).exists()
