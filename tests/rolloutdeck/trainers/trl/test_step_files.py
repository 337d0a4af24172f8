"""Steps that a training process reports with `log_artifact`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.client import start
from rolloutdeck.client.run import Run as TrainersRun
from rolloutdeck.protocol import wire
from rollouts.models import Artifact, Run
from tests.rolloutdeck.support.fake_server import wait_until
from tests.rolloutdeck.support.step_files import pin_step, read_artifact, read_folder, write_step
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)


def test_log_artifact_names_the_files_and_copies_nothing(training: TrainersRun, node: Path, tmp_path: Path) -> None:
    folder = write_step(node, 7)
    started = time.perf_counter()
    training.log_artifact(folder, step=7, role="rollout", manifest={"facts": {"model": "qwen"}})
    assert time.perf_counter() - started < 0.5
    row = wait_until(lambda: Artifact.objects.first())
    assert (row.step, row.role, row.state, row.attempt.key) == (7, "rollout", "waiting", "first")
    assert set(row.files) == {"gen_batch.dp", "meta.json"}
    assert row.facts["model"] == "qwen" and row.facts["rows"] == 32
    assert sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*") if path.is_file()) < 10_000


def test_a_pinned_step_is_sent_by_the_training_process(training: TrainersRun, node: Path, owner: User) -> None:
    folder = write_step(node, 7)
    training.log_artifact(folder, step=7)
    wait_until(lambda: Artifact.objects.first())
    pin_step(7, owner)
    wait_until(lambda: Artifact.objects.get().missing == 0)
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_a_resumed_training_sends_the_step_that_its_earlier_process_reported(
    node: Path, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUTDECK_RUN_ID", "u7")
    patch_everywhere(monkeypatch, wire, "HEARTBEAT_SECONDS", 0.05)
    folder = write_step(node, 7)
    before = start.init()
    before.log_artifact(folder, step=7)
    before.finish()
    pin_step(7, owner)
    resumed = start.init()
    resumed.log_artifact(write_step(node, 8), step=8)
    wait_until(lambda: Artifact.objects.get(step=7).missing == 0)
    resumed.finish(timeout=0)
    start._runs.clear()
    assert read_artifact(Artifact.objects.get(step=7)) == read_folder(folder)


def test_send_now_sends_a_step_before_the_run_is_finished(training: TrainersRun, node: Path) -> None:
    folder = write_step(node, 7)
    training.log_artifact(folder, step=7, send_now=True)
    training.finish()
    assert read_artifact(Artifact.objects.get()) == read_folder(folder)


def test_a_single_file_and_named_files_of_a_folder_are_artifacts_too(training: TrainersRun, node: Path) -> None:
    folder = write_step(node, 7)
    training.log_artifact(folder / "gen_batch.dp", step=7)
    training.log_artifact(folder, step=8, manifest={"files": ["meta.json"]})
    training.finish()
    assert {row.step: list(row.files) for row in Artifact.objects.all()} == {7: ["gen_batch.dp"], 8: ["meta.json"]}


def test_a_path_that_does_not_exist_loses_only_its_own_step(training: TrainersRun, node: Path) -> None:
    training.log_artifact(node / "nowhere", step=1)
    training.log_artifact(write_step(node, 2), step=2)
    training.log_artifact(node, step=3, role="no such role")
    training.finish()
    assert list(Artifact.objects.values_list("step", flat=True)) == [2]
    assert Run.objects.get().dropped


def test_reading_a_step_in_the_sender_thread_imports_no_module() -> None:
    """A fork while a thread imports leaves the module's lock held in the child."""
    code = (
        "import sys; from pathlib import Path; from rolloutdeck.client import artifact, start, run\n"
        "artifact.preload_modules(); before = set(sys.modules)\n"
        "paths = [path for path in Path(sys.argv[1]).glob('*/**/') if any(one.is_file() for one in path.iterdir())]\n"
        "layouts = [artifact.read_layout_facts(path, artifact.list_files_below(path)) for path in paths]\n"
        "print(sorted({str(facts.get('format')) for facts in layouts if facts}), sorted(set(sys.modules) - before))"
    )
    data = Path(__file__).parents[3] / "data"
    done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True, check=True, timeout=600)
    result, imported = done.stdout.rstrip().split("] ")
    assert all(word in result for word in ("gen_batch", "slime-rollout", "roll-mock")) and imported == "[]"
