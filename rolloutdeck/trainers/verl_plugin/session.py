"""The run that this process of verl's belongs to, found by verl's own configuration."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.env import Settings
from rolloutdeck.opening import init
from rolloutdeck.run import Run
from rolloutdeck.trainers.verl_plugin import hooks, vocabulary
from rolloutdeck.trainers.verl_plugin.selection import Selection

NAME = "rolloutdeck"  # in `trainer.logger`
MOST_WAITING = 3  # steps whose text waits to be decoded; each holds its batch in memory
EXIT_SECONDS = 20.0


class Session:
    """One run in one process: `run`, which token fields to keep, and a thread that makes rows out of batches.

    `producer` is "" except where several processes of a run generate. `seconds` is how long the training waited for
    us since it was last told. `counted`: (step, generations made, left out) of the last trained step. `dumps`: verl
    dumps steps that can be pinned.
    """

    def __init__(self, run: Run, config: Any) -> None:
        self.run, self.config, self.pid = run, config, os.getpid()
        self.selection = Selection.read(Settings.read().tokens, run.uid)
        self.seconds = 0.0
        self.counted: tuple[int, int, Mapping[str, int]] = (-1, 0, {})
        self.dumps = False
        self._tokenizers: dict[int, Any] = {}
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    @property
    def is_fully_async(self) -> bool:
        return is_fully_async(self.config)

    def later(self, job: Callable[[], None]) -> None:
        """Runs `job` in our thread, or counts it as lost when too many wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="rolloutdeck-verl", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.lose("steps whose text could not be decoded in time")

    def lose(self, what: str) -> None:
        self.run.lose(f"verl plug-in: {what}")
        hooks.voice.once(what, "Training goes on, but Rolloutdeck leaves out %s. It is counted on the run.", what)

    def tokenizer(self, theirs: Any) -> Any:
        """A copy for our thread: a fast tokenizer that two threads use at once raises in either of them."""
        found = self._tokenizers.get(id(theirs))
        if found is None:
            import copy

            found = self._tokenizers[id(theirs)] = copy.deepcopy(theirs)
            if self.dumps:
                self.later(lambda: vocabulary.tell(self.run, found))
        return found

    def flush(self, seconds: float) -> None:
        """Waits until our thread has nothing left, at most `seconds`."""
        end = time.monotonic() + seconds
        while self._jobs.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.02)

    def finish(self, outcome: str) -> None:
        self.flush(EXIT_SECONDS)
        self.run.finish(outcome)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            hooks.harmless(job)()
            self._jobs.task_done()
            del job


class Blocked:
    """`with Blocked(session):` adds to the seconds that the training waited for us."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.session.seconds += time.perf_counter() - self.start


_sessions: dict[tuple[str, str], Session] = {}
_opening = threading.Lock()


def session_of(config: Any) -> Session | None:
    """The session of a trainer's `config` (OmegaConf or dict); None where its `trainer.logger` does not name us."""
    trainer = config["trainer"]
    if NAME not in loggers(trainer.get("logger")):
        return None
    return session_named(str(trainer.get("project_name") or ""), str(trainer.get("experiment_name") or ""), config)


def session_named(project: str, experiment: str, config: Any) -> Session:
    names = (project, experiment)
    with _opening:
        found = _sessions.get(names)
        if found is None or found.run.finished or found.pid != os.getpid():
            found = _sessions[names] = Session(opened(config, *names), config)
            found.run.ends_here = False  # unless verl's `Tracking` is here too: a rollouter ends before its trainer
    return found


def loggers(told: Any) -> list[str]:
    return [told] if isinstance(told, str) else [str(name) for name in told or ()]


def opened(config: Any, project: str, name: str) -> Run:
    """ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN come before verl's names: who sets them means this server."""
    settings, trainer = Settings.read(), config.get("trainer", {})
    return init(
        project=settings.project or project,
        name=settings.run or name,
        config=plain(config),
        framework="verl",
        resume="allow" if trainer.get("resume_mode", "disable") != "disable" else "",
        checkpoint_dir=checkpoints(trainer),
    )


def checkpoints(trainer: Any) -> str | None:
    """Where the run's checkpoints lie; None for a relative path, which means another folder in each process."""
    folder = str(trainer.get("default_local_dir") or "")
    return folder if Path(folder).is_absolute() else None


def plain(config: Any) -> Any:
    if isinstance(config, dict):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=True)


def is_fully_async(config: Any) -> bool:
    return "async_training" in config
