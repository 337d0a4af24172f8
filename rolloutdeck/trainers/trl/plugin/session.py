"""The run of a trainer process, and the thread that builds its rows."""

from __future__ import annotations

import atexit
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rolloutdeck.client import Run
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import TokenBudget, TrainerSession, open_trainer_run
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration

MAX_FINISH_SECONDS = 5.0  # the next training waits for the uploads of the one before; the rest stays in the spool

Phase = Literal["", "training", "trained", "failed"]


class TrlSession(TrainerSession):
    thread_name = "rolloutdeck-trl"
    log_name = "TRL callback"
    overload_reason = "rows of generations that could not be made in time"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # Without the uid of the run: in some launches each process has another one until the server joins them.
        self.selection = replace(self.selection, seed="")
        self._budget = TokenBudget(self.selection)

    def select_token_groups(self, generation: CapturedGeneration) -> set[int]:
        """Returns the groups of a generation whose token fields are stored. Must be called once for each generation.

        All processes select the same groups of a step, of all its rows, so that a group is complete.
        """
        groups = generation.all_groups
        selected = self._budget.select_rows(list(map(str, groups)), generation.split, generation.step)
        return {groups[index] for index in selected}


@dataclass(eq=False)
class Recording:
    """What a callback records of one trainer. Each training has a session, and so a run or an attempt, of its own.

    An eval may follow a training, so its session stays open until the next training of this trainer, or of another one
    under the same name, or the end of the process. `phase` is that of the last training, "" before the first.
    `stored`: the last stored step, and its number of generations.
    """

    session: TrlSession | None = None
    phase: Phase = ""
    stored: tuple[int, int] = (-1, 0)
    facts: dict[str, Any] = field(default_factory=dict)
    is_closed: bool = True

    def open_session(self, args: Any, project: str, name: str) -> TrlSession:
        """Returns the session, and opens it if there is none or if the next training closed it."""
        if self.session is None or self.is_closed:
            self.session, self.is_closed = open_trl_session(args, project, name), False
            _open_recordings.append(self)
        return self.session

    def begin_training(self, args: Any, project: str, name: str) -> bool:
        """Closes what trained before, unless it still trains. Returns whether this trainer trains again."""
        is_again = bool(self.phase)
        requested = choose_names(args, project, name)
        for other in list(_open_recordings):
            has_ended = other.phase in ("trained", "failed")
            if not other.is_closed and (is_again if other is self else has_ended and other.is_named(*requested)):
                other.close()
        if is_again:
            self.stored, self.facts = (-1, 0), {}
        self.phase = "training"
        return is_again

    def is_named(self, project: str, name: str) -> bool:
        """Whether `init` returns this run if it is asked for these names."""
        run = self.session.run if self.session else None
        return run is not None and project in ("", run.project) and name in ("", run.name)

    def close(self) -> None:
        """Ends the run of the session, also for other trainers that have opened it by its name."""
        run = self.session.run if self.session else None
        sharing = [other for other in _open_recordings if other.session and other.session.run is run]
        for other in sharing:
            _open_recordings.remove(other)
            other.is_closed = True
            if other.session and other.session.pid == os.getpid():
                other.session.end_jobs()
        if run is not None and self.session and self.session.pid == os.getpid():
            run.finish("finished" if self.phase == "trained" else "failed", MAX_FINISH_SECONDS)


_open_recordings: list[Recording] = []


def close_failed_trainings() -> None:
    """At the end of the process: a training that raised has failed, also if its program went on."""
    for recording in [recording for recording in _open_recordings if recording.phase == "failed"]:
        recording.close()


atexit.register(close_failed_trainings)


def choose_names(args: Any, project: str, name: str) -> tuple[str, str]:
    """Returns the project and the run that a trainer asks for; "" for the default."""
    settings = Settings.from_environment()
    name = name or str(getattr(args, "run_name", None) or "")
    return settings.project or project, settings.run or name


def open_trl_session(args: Any, project: str, name: str) -> TrlSession:
    saves = getattr(args, "save_strategy", "no") != "no" and args.output_dir
    checkpoints = str(Path(args.output_dir).absolute()) if saves else ""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    producer = f"rank{rank}" if world > 1 else ""
    project, name = choose_names(args, project, name)
    return TrlSession(open_trainer_run("trl", project, name, checkpoints, config=args.to_dict(), producer=producer))
