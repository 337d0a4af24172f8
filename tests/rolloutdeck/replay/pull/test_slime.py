"""Rollouts of slime are imported, pinned and written under the numbers of the rollouts that replay them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rolloutdeck.replay.folder import PULL_MANIFEST
from rolloutdeck.safe_pickle.batches.torch_dict import RowConverter, open_torch_dict
from rollouts.indexing import indexer
from rollouts.models import Artifact, Dump, Pin, Project, Run, Sample
from rollouts.pins import artifact_check, pins
from rollouts.replay import loading_trainers, plans
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.cli.test_import_trainers import copy_tree
from tests.rolloutdeck.replay.pull.plans import RunCommand, hash_files, save_plan
from tests.support import builders

pytestmark = pytest.mark.django_db(transaction=True)

DATA = Path(__file__).parents[3] / "data/slime/rollout_data"
SHAPE = ("--set", "rollout_batch_size=8", "n_samples_per_prompt=4")


@pytest.fixture
def run_command(site: Site, secret: str, project: Project, tmp_path: Path) -> RunCommand:
    def run(command: str, *words: object) -> int:
        if command == "pull":
            words = ("--run", "new", "--into", tmp_path / "into", "--trainer", "slime", *words)
        values = ["--project", "math", "--url", f"http://127.0.0.1:{site.port}", "--token", secret]
        return main([command, *map(str, words), *values])

    return run


@pytest.fixture
def pin_rollout(run_command: RunCommand, owner: User, tmp_path: Path) -> Callable[[int], Pin]:
    """Imports slime's own files as the run `old`; returns a function that pins a rollout of it."""
    assert run_command("import", copy_tree("slime", tmp_path / "out"), "--run", "old", "--no-wait") == 0
    for row in Artifact.objects.order_by("pk"):
        artifact_check.check_artifact(row.pk)
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED).order_by("pk"):
        indexer.index_dump(dump.pk)
    return lambda step: pins.pin_step(Run.objects.get(name="old"), step, owner, step_kind="rollout_id")[0]


def sha256(step: int) -> str:
    return hashlib.sha256((DATA / f"{step}.pt").read_bytes()).hexdigest()


def flag_rollout_samples(by: User, step: int, *records: int) -> None:
    for sample in Sample.objects.filter(step__step=step, step__split="train", ordinal__in=records, visible=True):
        builders.flag_row(sample, by)


def find_removed_samples(path: Path) -> list[int]:
    """The positions of the samples with `remove_sample`, which have no weight."""
    with open_torch_dict(path) as saved:
        return [
            position
            for position, sample in enumerate(saved["samples"])
            if RowConverter().plain(sample)["remove_sample"]
        ]


def test_a_rollout_is_written_unchanged_under_the_number_that_replays_it(
    run_command: RunCommand,
    pin_rollout: Callable[[int], Pin],
    owner: User,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert [(row.step, row.state, row.facts["prompts"]) for row in Artifact.objects.order_by("step")] == [
        (0, "ready", 8), (1, "ready", 8), (2, "ready", 8),
    ]  # fmt: skip
    save_plan(owner, (pin_rollout(2), 0), (pin_rollout(0), 1))
    capsys.readouterr()
    assert run_command("pull", *SHAPE) == 0
    assert hash_files(tmp_path / "into") == {"rollout_data/0.pt": sha256(2), "rollout_data/1.pt": sha256(0)}
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        f"--load-debug-rollout-data '{tmp_path / 'into'}/rollout_data/{{rollout_id}}.pt'",
        "--start-rollout-id 0",
        "--num-rollout 2",
    ]
    assert "Step 0: step 2 of old, will replay (same settings; " in result.err
    assert "generates nothing: the run is rollouts 0 to 1" in result.err
    assert "SGLang is not started" in result.err
    created = Run.objects.get(name="new")
    assert (created.framework, created.status) == ("slime", "planned")  # L1: it was shown as running
    assert run_command("plan", "--run", "new") == 0
    assert "steps 0-1 replay the pins of these target steps" in capsys.readouterr().out


def test_the_forge_way_keeps_the_engines_and_reports_a_gap_in_the_plan(
    run_command: RunCommand,
    pin_rollout: Callable[[int], Pin],
    owner: User,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_plan(owner, (pin_rollout(0), 1), (pin_rollout(1), 3))
    capsys.readouterr()
    assert run_command("pull", *SHAPE, "--way", "forge") == 0
    result = capsys.readouterr()
    assert result.out.splitlines() == [
        "--rollout-function-path slime.rollout.forge_load.generate_rollout",
        f"--load-forge-rollout-data '{tmp_path / 'into'}/rollout_data/{{rollout_id}}.pt'",
        "--start-rollout-id 1",
        "--num-rollout 2",
    ]
    assert "It starts at 1, since the plan has nothing for 0." in result.err
    assert "There is no file for 2, and slime loads rollout 0 in its place: 3 will not be reached." in result.err
    assert "SGLang" not in result.err
    assert run_command("pull", *SHAPE, "--way", "both") == 2
    assert "Unknown --way 'both' for slime. Available: debug, forge" in capsys.readouterr().err


def test_a_repeat_plan_is_written_for_all_steps_and_files_of_removed_steps_are_deleted(
    run_command: RunCommand,
    pin_rollout: Callable[[int], Pin],
    owner: User,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_plan(owner, (pin_rollout(0), 0), (pin_rollout(1), 1), action="repeat")
    assert run_command("pull", *SHAPE, "num_rollout=5") == 0
    files = {path.name: path.stat().st_ino for path in (tmp_path / "into/rollout_data").iterdir()}
    assert sorted(files) == [f"{step}.pt" for step in range(5)] and files["0.pt"] == files["2.pt"] == files["4.pt"]
    assert run_command("pull", *SHAPE, "--steps", "3") == 0
    assert sorted(path.name for path in (tmp_path / "into/rollout_data").iterdir()) == ["0.pt", "1.pt", "2.pt"]
    capsys.readouterr()
    (tmp_path / "into/rollout_data/7.pt").write_bytes(b"of the run that saves there")
    assert run_command("pull", *SHAPE, "--steps", "3") == 2
    assert "7.pt was not written by `pull`" in capsys.readouterr().err


def test_flagged_samples_keep_their_position_and_have_no_weight(
    run_command: RunCommand,
    pin_rollout: Callable[[int], Pin],
    owner: User,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_plan(owner, (pin_rollout(0), 0), (pin_rollout(2), 1), on_selected="exclude")
    flag_rollout_samples(owner, 0, 5, 9)
    capsys.readouterr()
    assert run_command("pull", *SHAPE) == 0
    placed = tmp_path / "into/rollout_data"
    assert find_removed_samples(placed / "0.pt") == sorted({*find_removed_samples(DATA / "0.pt"), 5, 9})
    assert hashlib.sha256((placed / "1.pt").read_bytes()).hexdigest() == sha256(2)
    message = capsys.readouterr().err
    assert (
        "0.pt of step 0 of old: 2 of its 32 samples are flagged and trained with no weight (remove_sample)" in message
    )
    assert "rows: " not in message  # no row is missing
    (result,) = json.loads((tmp_path / "into" / PULL_MANIFEST).read_text())["repaired"]
    assert "The file is written by Rolloutdeck" in result


def test_a_rollout_of_another_shape_or_with_only_flagged_samples_is_skipped(
    run_command: RunCommand, pin_rollout: Callable[[int], Pin], owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (pin_rollout(0), 0), (pin_rollout(1), 1), on_selected="exclude")
    flag_rollout_samples(owner, 0, *range(32))
    capsys.readouterr()
    assert run_command("pull", *SHAPE) == 0
    assert "Target step 0 (step 0 of old) is skipped: all its prompts are flagged." in capsys.readouterr().err
    assert run_command("pull", "--set", "rollout_batch_size=8", "n_samples_per_prompt=8") == 2
    assert "rows: 32 pinned, 64 requested" in capsys.readouterr().err


def test_a_run_with_unknown_settings_is_assumed_to_match_the_pinned_rollouts(
    run_command: RunCommand, pin_rollout: Callable[[int], Pin], owner: User, capsys: pytest.CaptureFixture[str]
) -> None:
    save_plan(owner, (pin_rollout(1), 0))
    assert loading_trainers.find_plan_trainer(plans.find_current_revision(Project.objects.get())) == "slime"
    capsys.readouterr()
    assert run_command("pull") == 0
    message = capsys.readouterr().err
    assert "The settings of new are unknown. Assuming batches like old" in message
    assert "not compared because unknown: " in message
