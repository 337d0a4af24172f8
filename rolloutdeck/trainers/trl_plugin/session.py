"""The run that a trainer's process belongs to, and a thread that makes rows of what the trainer held."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolloutdeck.env import Settings
from rolloutdeck.opening import init
from rolloutdeck.run import Run
from rolloutdeck.trainers.verl_plugin import hooks
from rolloutdeck.trainers.verl_plugin.selection import Selection

MOST_WAITING = 3  # generations whose rows wait to be made; each holds its batch in memory
EXIT_SECONDS = 20.0


class Session:
    """One run in one process, and which of its rows keep their tokens."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.selection = Selection.read(Settings.read().tokens, run.uid)
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        atexit.register(self.flush, EXIT_SECONDS)

    def later(self, job: Callable[[], None]) -> None:
        """Runs `job` in our thread, or counts it as lost when too many wait."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="rolloutdeck-trl", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.lose("generations whose rows could not be made in time")

    def lose(self, what: str) -> None:
        self.run.lose(f"TRL callback: {what}")
        hooks.voice.once(what, "Training goes on, but Rolloutdeck leaves out %s. It is counted on the run.", what)

    def flush(self, seconds: float) -> None:
        """Waits until our thread has nothing left, at most `seconds`."""
        end = time.monotonic() + seconds
        while self._jobs.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.02)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            hooks.harmless(job)()
            self._jobs.task_done()
            del job


def opened(args: Any, project: str, name: str) -> Session:
    """ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN come before the given names, these before the trainer's `run_name`."""
    settings = Settings.read()
    keeps = getattr(args, "save_strategy", "no") != "no"
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    run = init(
        project=settings.project or project,
        name=settings.run or name or str(getattr(args, "run_name", None) or ""),
        config=args.to_dict(),
        framework="trl",
        checkpoint_dir=Path(args.output_dir).absolute() if keeps and args.output_dir else None,
        producer=f"rank{rank}" if world > 1 else "",
    )
    return Session(run)
