"""Steps whose files the trainer overwrites, as CURE does: `watch` uploads each while it is complete."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.folders.run_follower import RunFollower
from rolloutdeck.lib.http import ServerClient
from rolloutdeck.trainer_api import registry
from rolloutdeck.trainer_api.types import LoadableStep, StepLocation
from rolloutdeck.watch.artifact_collector import ArtifactOptions
from rolloutdeck.watch.follower import WatchedFolder
from rolloutdeck.watch.types import ScanOptions
from rolloutdeck.watch.upload import UploadTarget
from rollouts.models import Artifact, Run
from rollouts.pins import pins
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.support.step_files import check_artifacts, read_artifact
from tests.rolloutdeck.trainers.cure.test_step_files import BASE, CASE, CODE, DATA, LATER
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)

REWARDS = (CODE, CASE)
RunWatch = Callable[[], None]


@pytest.fixture
def run_watch(site: Site, secret: str, node: Path) -> RunWatch:
    """Runs a few turns of `watch` on the node's disk."""
    target = UploadTarget(ServerClient(f"http://127.0.0.1:{site.port}", secret), "math", "grpo", "files")
    watch = RunFollower(target, [WatchedFolder(node)], node, ScanOptions(), artifact_options=ArtifactOptions("on-pin"))

    def run_turns() -> None:
        for _ in range(4):
            watch.collector._next_scan_at = 0.0
            watch.send_ready()

    return run_turns


def write_files(node: Path, step: int, *names: str) -> None:
    """Writes files of a step as CURE does, over existing ones. Existing rewards become a minute older first."""
    folder = node / "optimization"
    for path in folder.rglob("rl_*.json"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    for name in names:
        source = DATA / f"step{0 if name == CASE else step}/temp_data" / name
        (folder / "temp_data").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "temp_data" / name)


def begin_step(node: Path, step: int) -> None:
    """Writes the results of sample.py, which show that a step has begun."""
    folder = node / "optimization/results"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (DATA / f"step{step}/results").iterdir():
        if not (folder / path.name).exists():  # one for each model
            shutil.copyfile(path, folder / path.name)


def list_states() -> list[tuple[int, str]]:
    return list(Artifact.objects.order_by("step").values_list("step", "state"))


def test_each_step_is_sent_at_once_and_kept_when_the_next_overwrites_its_files(
    node: Path, run_watch: RunWatch, owner: User
) -> None:
    begin_step(node, 0)
    write_files(node, 0, BASE, *REWARDS)
    run_watch()
    assert check_artifacts() == ["ready"] and list_states() == [(0, "ready")]
    before = read_artifact(Artifact.objects.get())
    begin_step(node, 1)
    write_files(node, 1, LATER)
    run_watch()
    assert list_states() == [(0, "ready")]  # programs of one step and rewards of another are no step
    write_files(node, 1, *REWARDS)
    run_watch()
    check_artifacts()
    assert list_states() == [(0, "ready"), (1, "ready")]
    assert read_artifact(Artifact.objects.get(step=0)) == before
    pin, _ = pins.pin_step(Run.objects.get(), 0, owner, step_kind="iteration")
    assert set(pin.artifacts.get().files) == {BASE, *REWARDS}


def test_a_step_that_is_overwritten_while_it_is_read_is_not_registered(
    node: Path, run_watch: RunWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_step(node, 0)
    write_files(node, 0, BASE, *REWARDS)
    read_step = registry.read_step

    def overwrite_after_reading(location: StepLocation) -> LoadableStep | str:
        result = read_step(location)
        patch_everywhere(monkeypatch, registry, "read_step", read_step)
        write_files(node, 1, CODE)
        return result

    patch_everywhere(monkeypatch, registry, "read_step", overwrite_after_reading)
    run_watch()
    assert registry.read_step is read_step and not Artifact.objects.exists()


def test_the_samples_of_a_replayable_step_are_sent_as_usual(node: Path, run_watch: RunWatch) -> None:
    begin_step(node, 0)
    write_files(node, 0, BASE, *REWARDS)
    run_watch()
    dumps = Run.objects.get().dumps.exclude(format="cure-results")
    assert sorted(dumps.values_list("format", flat=True)) == ["cure-data", "cure-data", "cure-outputs"]


def test_the_reason_why_a_step_is_not_complete_yet_is_printed_once(
    node: Path, run_watch: RunWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (0, 1):
        write_files(node, 0, BASE, *REWARDS)
        shutil.copyfile(DATA / f"step0/before_execute/{BASE}", node / "optimization/temp_data" / BASE)
        (node / "optimization/temp_data" / CODE).write_text(f"[{' ' * step}]")
        run_watch()
    assert capsys.readouterr().err.count("as CURE has not run their programs yet") == 1
    assert not Artifact.objects.exists()
