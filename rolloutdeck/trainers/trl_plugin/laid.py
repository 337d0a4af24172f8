"""Steps that lie in a folder, as `pull --trainer trl` lays them out or a callback's `keep` left them: replayed without
asking any server."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolloutdeck.errors import Unfit
from rolloutdeck.fetch import hash_of
from rolloutdeck.replay_folder import MANIFEST
from rolloutdeck.trainers import hooks
from rolloutdeck.trainers.trl_plugin import kept
from rolloutdeck.trainers.trl_plugin.replaying import (
    Batch,
    Calls,
    Rollout,
    batch_of,
    leads,
    may_replay,
    objection,
    own_of,
    ranks,
    run_of,
    said_once,
)
from rolloutdeck.voice import log


class Laid:
    """A `rollout_func`: steps that have a file in `folder` are replayed, all others and every eval are generated."""

    def __init__(self, folder: Path, otherwise: Rollout) -> None:
        """Raises ValueError for a folder without steps, and OSError: a training that shall replay would generate."""
        self.folder, self.otherwise = folder, otherwise
        self.told = manifest_of(folder)
        self.calls = Calls()
        self.steps: set[str] | None = None  # those that the first process sees
        if not any(folder.glob("step_*/rollout-*.json")):
            raise ValueError(f"{folder} holds no step of TRL; `rolloutdeck pull --trainer trl --into` puts them there.")

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> Batch:
        """Raises hooks.Stop where the plan asks for it, and what generating raises."""
        found = self._replayed(prompts, trainer) if trainer.model.training else None
        return self.otherwise(prompts, trainer) if found is None else found

    @hooks.harmless
    def _replayed(self, prompts: Sequence[Any], trainer: Any) -> Batch | None:
        step, call = self.calls.next(trainer)
        if self.steps is None:
            self.steps = said_once(trainer, lambda: {path.name for path in self.folder.glob("step_*")})
        if kept.folder_of(step) not in self.steps:
            return None
        start, rows, error = time.monotonic(), [], None
        try:
            may_replay(trainer)
            rows = own_of(self._rows(self.folder / kept.folder_of(step) / kept.name_of(call)), prompts, trainer)
        except Exception as found:  # whatever it is, the step can be generated
            error = found
        error = objection(trainer, error)
        if error is not None:
            self._leave(trainer, step, error)
            return None
        count = len(rows) * ranks(trainer)
        self._report(trainer, step, "hit", rows=count, seconds=time.monotonic() - start)
        log.info("Step %d is replayed from %s: %d rows.", step, self.folder / kept.folder_of(step), count)
        return batch_of(rows)

    def _rows(self, path: Path) -> list[kept.Row]:
        """Raises Unfit, OSError, ValueError."""
        known = (self.told.get("files") or {}).get(path.relative_to(self.folder).as_posix())
        if self.told and (known is None or hash_of(path) != known):
            raise Unfit(f"{path.name} is not the file that `pull` laid out")
        return kept.read(path)

    def _leave(self, trainer: Any, step: int, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        self._report(trainer, step, "refused", reason=reason)
        if leads(trainer):
            log.warning("Step %d is not replayed: %s", step, reason)
        if self.told.get("on_mismatch") == "stop":
            raise hooks.Stop(f"The replay plan {self.told.get('plan')} says to stop. Step {step}: {reason}")

    def _report(self, trainer: Any, step: int, outcome: str, **more: Any) -> None:
        """To the run of the trainer's callback, where it has one and the folder says which pins these are."""
        pin = (self.told.get("pins") or {}).get(str(step))
        run = run_of(trainer)
        if run is not None and isinstance(pin, int):
            run.report_replay(step, outcome, pin=pin, **more)


def manifest_of(folder: Path) -> dict[str, Any]:
    """What `pull` wrote down beside the steps; {} where it did not make the folder. Raises ValueError, OSError."""
    if not (folder / MANIFEST).is_file():
        return {}
    told = json.loads((folder / MANIFEST).read_bytes())
    if not isinstance(told, dict) or not told.get("complete"):
        raise ValueError(f"{folder} is not whole: a `rolloutdeck pull` into it did not end; repeat it.")
    return told
