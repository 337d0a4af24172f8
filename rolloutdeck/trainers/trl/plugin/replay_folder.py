"""Steps in a folder that `pull --trainer trl` or a callback's `keep` wrote: replayed without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolloutdeck.errors import NotReplayableError
from rolloutdeck.lib import hash_file, log_or_print, logger
from rolloutdeck.replay import PULL_MANIFEST
from rolloutdeck.trainers.common import ReplayStoppedError
from rolloutdeck.trainers.trl.plugin import step_files
from rolloutdeck.trainers.trl.plugin.processes import broadcast_from_main, is_main_process
from rolloutdeck.trainers.trl.plugin.ranks import find_reporting_run


class FolderStepSource:
    """The steps that have a file in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError, and ValueError if the folder has no steps: else all steps would be generated silently."""
        self.folder = folder
        self.manifest = load_manifest(folder)
        self.step_folders: set[str] | None = None  # those that the main process sees
        if not any(folder.glob("step_*/rollout-*.json")):
            raise ValueError(f"{folder} has no step of TRL; `rolloutdeck pull --trainer trl --into` writes them there.")

    def __call__(self, step: int, trainer: Any) -> FolderStep | None:
        if self.step_folders is None:
            self.step_folders = broadcast_from_main(trainer, lambda: {path.name for path in self.folder.glob("step_*")})
        name = step_files.build_step_folder_name(step)
        return FolderStep(self.folder / name, step, self.manifest) if name in self.step_folders else None


@dataclass(frozen=True)
class FolderStep:
    """`manifest`: the manifest that `pull` wrote for the folder."""

    folder: Path
    number: int
    manifest: Mapping[str, Any]

    def load_generation(self, call: int, trainer: Any) -> step_files.StoredGeneration:
        """Raises NotReplayableError, OSError, ValueError."""
        path = self.folder / step_files.build_generation_name(call)
        expected_hash = (self.manifest.get("files") or {}).get(f"{self.folder.name}/{path.name}")
        if self.manifest and (expected_hash is None or hash_file(path) != expected_hash):
            raise NotReplayableError(f"{path.name} is not the file that `pull` wrote")
        return step_files.read_generation(path)

    def report_replayed(self, trainer: Any, rows: int, seconds: float) -> None:
        reported = self._report(trainer, "hit", rows=rows, seconds=seconds, source=str(self.folder))
        if not reported and is_main_process(trainer):
            log_or_print("Step %d is replayed from %s: %d rows.", self.number, self.folder, rows)

    def report_not_replayed(self, trainer: Any, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._report(trainer, "refused", reason=reason)
        if is_main_process(trainer):
            logger.warning("Step %d is not replayed: %s", self.number, reason)
        if self.manifest.get("on_mismatch") == "stop":
            message = f"The replay plan {self.manifest.get('plan')} says to stop."
            raise ReplayStoppedError(f"{message} Step {self.number}: {reason}")

    def _report(self, trainer: Any, outcome: str, **details: Any) -> bool:
        """Reports to the run of the trainer's callback, if it has one. Returns whether.

        A folder without a manifest has no pins. With one, a step that is not in it is not reported.
        """
        pin = (self.manifest.get("pins") or {}).get(str(self.number))
        run = find_reporting_run(trainer)
        if run is None or (self.manifest and not isinstance(pin, int)):
            return False
        run.report_replay(self.number, outcome, pin=pin, **details)
        return True


def load_manifest(folder: Path) -> dict[str, Any]:
    """Loads the manifest of `pull`; {} if `pull` did not write the folder. Raises ValueError, OSError."""
    if not (folder / PULL_MANIFEST).is_file():
        return {}
    manifest = json.loads((folder / PULL_MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or not manifest.get("complete"):
        raise ValueError(f"{folder} is not complete: a `rolloutdeck pull` into it did not finish; run it again.")
    return manifest
