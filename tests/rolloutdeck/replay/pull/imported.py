"""Helpers that import the files of a trainer as the run `old`, pin its steps and flag its samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from rolloutdeck.cli.entry import main
from rollouts.indexing import indexer
from rollouts.models import Artifact, Dump, Pin, Run, Sample
from rollouts.pins import artifact_check, pins
from tests.dashboard.support.asgi_server import Site
from tests.support import builders

RunCommand = Callable[..., int]


def build_command_runner(site: Site, secret: str, into: Path, trainer: str) -> RunCommand:
    """Returns a function that runs commands; `pull` is run for the run `new`."""

    def run_command(command: str, *words: object) -> int:
        if command == "pull":
            words = ("--run", "new", "--into", into, "--trainer", trainer, *words)
        values = ["--project", "math", "--url", f"http://127.0.0.1:{site.port}", "--token", secret]
        return main([command, *map(str, words), *values])

    return run_command


def import_folder(run_command: RunCommand, folder: Path) -> None:
    """Imports the files below a folder, then checks and indexes them as a worker does."""
    assert run_command("import", folder, "--run", "old", "--no-wait") == 0
    for row in Artifact.objects.order_by("pk"):
        artifact_check.check_artifact(row.pk)
    for dump in Dump.objects.filter(state=Dump.State.RECEIVED).order_by("pk"):
        indexer.index_dump(dump.pk)


def pin_step(step: int, by: User, **more: Any) -> Pin:
    return pins.pin_step(Run.objects.get(name="old"), step, by, **more)[0]


def flag_samples(by: User, *samples: Sample) -> None:
    for sample in samples:
        builders.flag_row(sample, by)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
