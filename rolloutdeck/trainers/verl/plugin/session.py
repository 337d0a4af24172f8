"""The run of a verl process, found by verl's configuration."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import EXIT_SECONDS, TrainerSession
from rolloutdeck.trainers.verl.plugin.tokenizer import log_tokenizer

LOGGER_NAME = "rolloutdeck"  # in `trainer.logger`


class VerlSession(TrainerSession):
    """A run in one process: the selection of token fields, and a thread that builds rows from batches.

    `blocked_seconds`: how long the training waited for Rolloutdeck since the last log. `last_counts`: (step, generated,
    excluded) of the last trained step. `writes_dumps`: verl dumps steps that can be pinned.
    """

    thread_name = "rolloutdeck-verl"
    log_name = "verl plug-in"
    overload_reason = "steps whose text could not be decoded in time"

    def __init__(self, run: Run, config: Any) -> None:
        super().__init__(run)
        self.config = config
        self.blocked_seconds = 0.0
        self.last_counts: tuple[int, int, Mapping[str, int]] = (-1, 0, {})
        self.writes_dumps = False
        self._tokenizers: dict[int, Any] = {}

    @property
    def is_fully_async(self) -> bool:
        return is_fully_async(self.config)

    def tokenizer(self, original: Any) -> Any:
        """Returns a copy for the session's thread: a fast tokenizer that two threads use at once raises in either of
        them."""
        tokenizer = self._tokenizers.get(id(original))
        if tokenizer is None:
            import copy

            tokenizer = self._tokenizers[id(original)] = copy.deepcopy(original)
            if self.writes_dumps:
                self.submit(lambda: log_tokenizer(self.run, tokenizer))
        return tokenizer

    def finish(self, outcome: str) -> None:
        self.flush(EXIT_SECONDS)
        self.run.finish(outcome)


class BlockedTimer:
    """`with BlockedTimer(session):` adds to the seconds that the training waited for Rolloutdeck."""

    def __init__(self, session: VerlSession) -> None:
        self.session = session

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.session.blocked_seconds += time.perf_counter() - self.start


_sessions: dict[tuple[str, str], VerlSession] = {}
_opening = threading.Lock()


def find_verl_session(config: Any) -> VerlSession | None:
    """Returns the session of a trainer's `config` (OmegaConf or dict); None if its `trainer.logger` does not name
    `rolloutdeck`."""
    trainer = config["trainer"]
    if LOGGER_NAME not in parse_loggers(trainer.get("logger")):
        return None
    return open_verl_session(str(trainer.get("project_name") or ""), str(trainer.get("experiment_name") or ""), config)


def open_verl_session(project: str, experiment: str, config: Any) -> VerlSession:
    names = (project, experiment)
    with _opening:
        session = _sessions.get(names)
        if session is None or session.run.finished or session.pid != os.getpid():
            session = _sessions[names] = VerlSession(open_verl_run(config, *names), config)
            # Unless this process has verl's `Tracking`: a rollouter ends before its trainer.
            session.run.ends_here = False
    return session


def parse_loggers(setting: Any) -> list[str]:
    return [setting] if isinstance(setting, str) else [str(name) for name in setting or ()]


def open_verl_run(config: Any, project: str, name: str) -> Run:
    """Opens the run. ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN override verl's names."""
    settings, trainer = Settings.from_environment(), config.get("trainer", {})
    return init(
        project=settings.project or project,
        name=settings.run or name,
        config=convert_config(config),
        framework="verl",
        resume="allow" if trainer.get("resume_mode", "disable") != "disable" else "",
        checkpoint_dir=get_checkpoint_folder(trainer),
    )


def get_checkpoint_folder(trainer: Any) -> str | None:
    """Returns the folder of the run's checkpoints; None for a relative path, which is another folder in each
    process."""
    folder = str(trainer.get("default_local_dir") or "")
    return folder if Path(folder).is_absolute() else None


def convert_config(config: Any) -> Any:
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def is_fully_async(config: Any) -> bool:
    return "async_training" in config
