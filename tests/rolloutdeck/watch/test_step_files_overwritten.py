"""Steps whose files their trainer writes over, as CURE does: `watch` takes each while it is whole."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.watch_run import RunFollower
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
from tests.rolloutdeck.support.step_files import bytes_of, checked
from tests.rolloutdeck.trainers.cure.test_step_files import BASE, CASE, CODE, DATA, LATER
from tests.support.patching import patch_everywhere

pytestmark = pytest.mark.django_db(transaction=True)

REWARDS = (CODE, CASE)
Watch = Callable[[], None]


@pytest.fixture
def watch(site: Site, secret: str, node: Path) -> Watch:
    """A few turns of `watch` on the node's disk."""
    target = UploadTarget(ServerClient(f"http://127.0.0.1:{site.port}", secret), "math", "grpo", "files")
    follow = RunFollower(target, [WatchedFolder(node)], node, ScanOptions(), artifact_options=ArtifactOptions("on-pin"))

    def turns() -> None:
        for _ in range(4):
            follow.collector._next_scan_at = 0.0
            follow.send_ready()

    return turns


def write(node: Path, step: int, *names: str) -> None:
    """What CURE's stages write of a step, over what was there; the rewards before are a minute older than that."""
    folder = node / "optimization"
    for path in folder.rglob("rl_*.json"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    for name in names:
        source = DATA / f"step{0 if name == CASE else step}/temp_data" / name
        (folder / "temp_data").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / "temp_data" / name)


def begin(node: Path, step: int) -> None:
    """sample.py's line about a step, which says that it has begun."""
    folder = node / "optimization/results"
    folder.mkdir(parents=True, exist_ok=True)
    for path in (DATA / f"step{step}/results").iterdir():
        if not (folder / path.name).exists():  # one for each model
            shutil.copyfile(path, folder / path.name)


def list_queued() -> list[tuple[int, str]]:
    return list(Artifact.objects.order_by("step").values_list("step", "state"))


def test_each_step_is_sent_at_once_and_stays_when_the_next_is_written_over_it(
    node: Path, watch: Watch, owner: User
) -> None:
    begin(node, 0)
    write(node, 0, BASE, *REWARDS)
    watch()
    assert checked() == ["ready"] and list_queued() == [(0, "ready")]
    before = bytes_of(Artifact.objects.get())
    begin(node, 1)
    write(node, 1, LATER)
    watch()
    assert list_queued() == [(0, "ready")]  # programs of one step beside rewards of another are none
    write(node, 1, *REWARDS)
    watch()
    checked()
    assert list_queued() == [(0, "ready"), (1, "ready")]
    assert bytes_of(Artifact.objects.get(step=0)) == before
    pin, _ = pins.pin_step(Run.objects.get(), 0, owner, step_kind="iteration")
    assert set(pin.artifacts.get().files) == {BASE, *REWARDS}


def test_a_step_that_is_written_over_while_it_is_looked_at_is_none(
    node: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(node, 0)
    write(node, 0, BASE, *REWARDS)
    looked_at = registry.read_step

    def meanwhile(spot: StepLocation) -> LoadableStep | str:
        result = looked_at(spot)
        patch_everywhere(monkeypatch, registry, "read_step", looked_at)
        write(node, 1, CODE)
        return result

    patch_everywhere(monkeypatch, registry, "read_step", meanwhile)
    watch()
    assert registry.read_step is looked_at and not Artifact.objects.exists()


def test_its_samples_come_as_they_would_without_it(node: Path, watch: Watch) -> None:
    begin(node, 0)
    write(node, 0, BASE, *REWARDS)
    watch()
    dumps = Run.objects.get().dumps.exclude(format="cure-results")
    assert sorted(dumps.values_list("format", flat=True)) == ["cure-data", "cure-data", "cure-outputs"]


def test_why_a_step_can_not_be_taken_yet_is_said_once(
    node: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (0, 1):
        write(node, 0, BASE, *REWARDS)
        shutil.copyfile(DATA / f"step0/before_execute/{BASE}", node / "optimization/temp_data" / BASE)
        (node / "optimization/temp_data" / CODE).write_text(f"[{' ' * step}]")
        watch()
    assert capsys.readouterr().err.count("as CURE has not run their programs yet") == 1
    assert not Artifact.objects.exists()
