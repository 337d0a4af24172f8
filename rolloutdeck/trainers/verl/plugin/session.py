"""The run that this process of verl's belongs to, found by verl's own configuration."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import EXIT_SECONDS
from rolloutdeck.trainers.common import TrainerSession as Shared
from rolloutdeck.trainers.verl.plugin import tokenizer as vocabulary

LOGGER_NAME = "rolloutdeck"  # in `trainer.logger`


class VerlSession(Shared):
    """One run in one process: `run`, which token fields to keep, and a thread that makes rows out of batches.

    `producer` is "" except where several processes of a run generate. `seconds` is how long the training waited for
    us since it was last told. `counted`: (step, generations made, left out) of the last trained step. `dumps`: verl
    dumps steps that can be pinned.
    """

    thread = "rolloutdeck-verl"
    who = "verl plug-in"
    late = "steps whose text could not be decoded in time"

    def __init__(self, run: Run, config: Any) -> None:
        super().__init__(run)
        self.config = config
        self.seconds = 0.0
        self.counted: tuple[int, int, Mapping[str, int]] = (-1, 0, {})
        self.dumps = False
        self._tokenizers: dict[int, Any] = {}

    @property
    def is_fully_async(self) -> bool:
        return is_fully_async(self.config)

    def tokenizer(self, theirs: Any) -> Any:
        """A copy for our thread: a fast tokenizer that two threads use at once raises in either of them."""
        found = self._tokenizers.get(id(theirs))
        if found is None:
            import copy

            found = self._tokenizers[id(theirs)] = copy.deepcopy(theirs)
            if self.dumps:
                self.later(lambda: vocabulary.log_tokenizer(self.run, found))
        return found

    def finish(self, outcome: str) -> None:
        self.flush(EXIT_SECONDS)
        self.run.finish(outcome)


class BlockedTimer:
    """`with Blocked(session):` adds to the seconds that the training waited for us."""

    def __init__(self, session: VerlSession) -> None:
        self.session = session

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.session.seconds += time.perf_counter() - self.start


_sessions: dict[tuple[str, str], VerlSession] = {}
_opening = threading.Lock()


def find_verl_session(config: Any) -> VerlSession | None:
    """The session of a trainer's `config` (OmegaConf or dict); None where its `trainer.logger` does not name us."""
    trainer = config["trainer"]
    if LOGGER_NAME not in parse_loggers(trainer.get("logger")):
        return None
    return open_verl_session(str(trainer.get("project_name") or ""), str(trainer.get("experiment_name") or ""), config)


def open_verl_session(project: str, experiment: str, config: Any) -> VerlSession:
    names = (project, experiment)
    with _opening:
        found = _sessions.get(names)
        if found is None or found.run.finished or found.pid != os.getpid():
            found = _sessions[names] = VerlSession(opened(config, *names), config)
            found.run.ends_here = False  # unless verl's `Tracking` is here too: a rollouter ends before its trainer
    return found


def parse_loggers(told: Any) -> list[str]:
    return [told] if isinstance(told, str) else [str(name) for name in told or ()]


def opened(config: Any, project: str, name: str) -> Run:
    """ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN come before verl's names: who sets them means this server."""
    settings, trainer = Settings.from_environment(), config.get("trainer", {})
    return init(
        project=settings.project or project,
        name=settings.run or name,
        config=convert_config(config),
        framework="verl",
        resume="allow" if trainer.get("resume_mode", "disable") != "disable" else "",
        checkpoint_dir=checkpoints(trainer),
    )


def checkpoints(trainer: Any) -> str | None:
    """Where the run's checkpoints lie; None for a relative path, which means another folder in each process."""
    folder = str(trainer.get("default_local_dir") or "")
    return folder if Path(folder).is_absolute() else None


def convert_config(config: Any) -> Any:
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def is_fully_async(config: Any) -> bool:
    return "async_training" in config
