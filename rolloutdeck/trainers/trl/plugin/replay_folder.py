"""Steps that lie in a folder, as `pull --trainer trl` lays them out or a callback's `keep` left them: replayed without
asking any server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import hash_file, logger
from rolloutdeck.replay import PULL_MANIFEST
from rolloutdeck.trainers.common import ReplayStoppedError
from rolloutdeck.trainers.trl.plugin import step_files
from rolloutdeck.trainers.trl.plugin.ranks import broadcast_from_main, find_reporting_run, is_main_process


class FolderStepSource:
    """The steps that have a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError for a folder without steps, and OSError: a training that shall replay would generate."""
        self.folder = folder
        self.told = manifest_of(folder)
        self.steps: set[str] | None = None  # those that the first process sees
        if not any(folder.glob("step_*/rollout-*.json")):
            raise ValueError(f"{folder} holds no step of TRL; `rolloutdeck pull --trainer trl --into` puts them there.")

    def at(self, step: int, trainer: Any) -> FolderStep | None:
        if self.steps is None:
            self.steps = broadcast_from_main(trainer, lambda: {path.name for path in self.folder.glob("step_*")})
        name = step_files.build_step_folder_name(step)
        return FolderStep(self.folder / name, step, self.told) if name in self.steps else None


@dataclass(frozen=True)
class FolderStep:
    """`told` is what `pull` wrote down of the whole folder."""

    folder: Path
    number: int
    told: Mapping[str, Any]

    def generation(self, call: int, trainer: Any) -> step_files.StoredGeneration:
        """Raises NotReplayableError, OSError, ValueError."""
        path = self.folder / step_files.build_generation_name(call)
        known = (self.told.get("files") or {}).get(f"{self.folder.name}/{path.name}")
        if self.told and (known is None or hash_file(path) != known):
            raise NotReplayableError(f"{path.name} is not the file that `pull` laid out")
        return step_files.read_generation(path)

    def hit(self, trainer: Any, rows: int, seconds: float) -> None:
        self._report(trainer, "hit", rows=rows, seconds=seconds)
        logger.info("Step %d is replayed from %s: %d rows.", self.number, self.folder, rows)

    def leave(self, trainer: Any, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._report(trainer, "refused", reason=reason)
        if is_main_process(trainer):
            logger.warning("Step %d is not replayed: %s", self.number, reason)
        if self.told.get("on_mismatch") == "stop":
            raise ReplayStoppedError(
                f"The replay plan {self.told.get('plan')} says to stop. Step {self.number}: {reason}"
            )

    def _report(self, trainer: Any, outcome: str, **more: Any) -> None:
        """To the run of the trainer's callback, where it has one and the folder says which pins these are."""
        pin = (self.told.get("pins") or {}).get(str(self.number))
        run = find_reporting_run(trainer)
        if run is not None and isinstance(pin, int):
            run.report_replay(self.number, outcome, pin=pin, **more)


def manifest_of(folder: Path) -> dict[str, Any]:
    """What `pull` wrote down beside the steps; {} where it did not make the folder. Raises ValueError, OSError."""
    if not (folder / PULL_MANIFEST).is_file():
        return {}
    told = json.loads((folder / PULL_MANIFEST).read_bytes())
    if not isinstance(told, dict) or not told.get("complete"):
        raise ValueError(f"{folder} is not whole: a `rolloutdeck pull` into it did not end; repeat it.")
    return told
