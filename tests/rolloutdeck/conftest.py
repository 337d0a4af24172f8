from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User

from rolloutdeck.cli.folders import watch_report
from rolloutdeck.client import artifact
from rolloutdeck.client import start as client_start
from rolloutdeck.client.run import Run
from rolloutdeck.client.upload import dispatcher, sender
from rolloutdeck.lib import download
from rolloutdeck.protocol import wire
from rolloutdeck.trainers.common import patching, session
from rolloutdeck.watch import artifact_collector, follower
from rollouts.models import Project
from tests.dashboard.support.asgi_server import Site
from tests.rolloutdeck.support.fake_server import Receiver
from tests.support import builders
from tests.support.patching import patch_everywhere


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.down()


@pytest.fixture
def spool_root(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def connected_receiver(
    receiver: Receiver, spool_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Receiver:
    """A fake server to which this process and its children send, with short pauses and an empty home folder."""
    for name, value in {"URL": receiver.url, "TOKEN": "secret", "SPOOL": str(spool_root), "ATTEMPT": "first"}.items():
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ["MIN_BACKOFF_SECONDS", "MAX_BACKOFF_SECONDS", "ACTION_REQUIRED_PAUSE"]:
        monkeypatch.setattr(dispatcher, name, 0.05)
    monkeypatch.setattr(sender, "RESCAN_SECONDS", 0.05)
    monkeypatch.setattr(sender, "ADOPT_SECONDS", 0.2)
    return receiver


@pytest.fixture
def start(connected_receiver: Receiver) -> Iterator[Callable[..., Run]]:
    """Starts runs as a trainer does, and ends them after the test."""
    runs: list[Run] = []

    def init(**fields: Any) -> Run:
        runs.append(client_start.init(**{"project": "math", "name": "grpo", **fields}))
        return runs[-1]

    yield init
    for run in runs:
        run.finish(timeout=0)
    client_start._runs.clear()


@pytest.fixture
def secret(owner: User, project: Project) -> str:
    return builders.token(owner, "ingest", "read", on=project)


@pytest.fixture
def node(site: Site, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the disk of a trainer. This process sends to the server, with an empty home folder and no pauses."""
    names = {"URL": f"http://127.0.0.1:{site.port}", "TOKEN": secret, "SPOOL": str(tmp_path / "spool")}
    for name, value in {**names, "PROJECT": "math", "RUN": "grpo", "ATTEMPT": "first"}.items():
        monkeypatch.setenv(f"ROLLOUTDECK_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("SCAN_SECONDS", "POLL_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(artifact_collector, name, 0.0)
    monkeypatch.setattr(follower, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch_report, "INDEX_SECONDS", 0.0)  # no worker runs that could index
    artifact._hashes.clear()
    (tmp_path / "node").mkdir()
    return tmp_path / "node"


@pytest.fixture
def training(node: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    patch_everywhere(monkeypatch, wire, "HEARTBEAT_SECONDS", 0.05)
    run = client_start.init()
    yield run
    run.finish(timeout=0)
    client_start._runs.clear()


TRL_MODULES = tuple(
    f"rolloutdeck.trainers.trl.plugin.{name}"
    for name in ("callback", "ranks", "replay", "prompt_images", "replay_folder", "replay_func")
)


@pytest.fixture
def trl(connected_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Our modules for TRL, imported with a fake of the one class of transformers that they need."""
    transformers = ModuleType("transformers")
    vars(transformers)["TrainerCallback"] = object
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    patch_everywhere(monkeypatch, patching, "once_logger", patching.OnceLogger())
    monkeypatch.setattr(download, "FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(session, "MAX_WAITING_STEPS", 100)  # these trainers take no time between two steps
    monkeypatch.setenv("ROLLOUTDECK_TOKENS", "all")
    for name in TRL_MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    callback, *_, replay_func = map(importlib.import_module, TRL_MODULES)
    trl_session = importlib.import_module("rolloutdeck.trainers.trl.plugin.session")
    yield SimpleNamespace(
        Callback=callback.RolloutdeckCallback,
        replaying=replay_func.replay_rollout_func,
        module=callback,
        session=trl_session,
    )
    for run in list(client_start._runs):
        run.finish(timeout=0)
    client_start._runs.clear()
    for name in TRL_MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def second_process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A fake second process of a TRL trainer: it gets `first` from the first process, and has `objections`."""
    result = SimpleNamespace(first=None, objections=[], asked=0)
    accelerate = ModuleType("accelerate.utils")

    def gather_object(existing: list[Any]) -> list[Any]:
        result.asked += 1
        return [*existing, *result.objections]

    vars(accelerate)["broadcast_object_list"] = lambda message, from_process: [result.first or message[from_process]]
    vars(accelerate)["gather_object"] = gather_object
    monkeypatch.setitem(sys.modules, "accelerate", ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "accelerate.utils", accelerate)
    return result
