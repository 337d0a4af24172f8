"""Steps that a trainer stores on its disk, and their files on the server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User

from rolloutdeck.cli import entry
from rolloutdeck.client import artifact
from rollouts.models import Artifact, Run
from rollouts.pins import artifact_check, pins
from rollouts.storage import blobs
from tests.rollouts.support.verl_batches import V0

TREE = "exp_proj/GBS8_N4_in128_out256"


def write_step(node: Path, number: int, source: Path = V0, tree: str = TREE) -> Path:
    folder = node / tree / str(number)
    shutil.copytree(source, folder)
    if source == V0:
        (folder / "meta.json").write_text(json.dumps({"global_steps": number}))
    return folder


def check_artifacts() -> list[str]:
    """Checks all artifacts as a worker does. Returns their states."""
    for row in Artifact.objects.order_by("pk"):
        artifact_check.check_artifact(row.pk)
    return list(Artifact.objects.order_by("pk").values_list("state", flat=True))


def read_artifact(row: Artifact) -> dict[str, bytes]:
    """Returns the files that a trainer would get."""
    result = {}
    for name, file in row.files.items():
        with blobs.open_blob(row.run.project_id, file["sha256"]) as stored:
            result[name] = stored.read()
    return result


def read_folder(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in artifact.list_files_below(folder)}


def pin_step(number: int, owner: User) -> Any:
    return pins.pin_step(Run.objects.get(), number, owner)[0]


def run_import(*words: object) -> int:
    return entry.main(["import", *map(str, words), "--no-wait"])
