"""The run of a trainer process, and the thread that builds its rows."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import EXIT_SECONDS, TokenBudget, TrainerSession, open_trainer_run
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration

MAX_FINISH_SECONDS = 5.0  # the next training waits for the uploads of the one before; the rest stays in the spool

_sessions: list[TrlSession] = []


class TrlSession(TrainerSession):
    """`phase`: whether its run belongs to a training that runs, or that has ended; "" before one begins."""

    thread_name = "rolloutdeck-trl"
    log_name = "TRL callback"
    overload_reason = "rows of generations that could not be made in time"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # Without the uid of the run: in some launches each process has another one until the server joins them.
        self.selection = replace(self.selection, seed="")
        self._budget = TokenBudget(self.selection)
        self.phase: Literal["", "training", "trained"] = ""

    def select_token_groups(self, generation: CapturedGeneration) -> set[int]:
        """Returns the groups of a generation whose token fields are stored. Must be called once for each generation.

        All processes select the same groups of a step, of all its rows, so that a group is complete.
        """
        groups = generation.all_groups
        selected = self._budget.select_rows(list(map(str, groups)), generation.split, generation.step)
        return {groups[index] for index in selected}


def open_trl_session(args: Any, project: str, name: str) -> TrlSession:
    saves = getattr(args, "save_strategy", "no") != "no" and args.output_dir
    checkpoints = str(Path(args.output_dir).absolute()) if saves else ""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    producer = f"rank{rank}" if world > 1 else ""
    name = name or str(getattr(args, "run_name", None) or "")
    run = open_trainer_run("trl", project, name, checkpoints, config=args.to_dict(), producer=producer)
    _sessions.append(session := TrlSession(run))
    return session


def close_former_trainings() -> None:
    """Ends the runs of the trainings that this process did before, so that the next one is an attempt of its own.

    Their callbacks do not end them, because an eval may follow. A training that did not reach its end has failed.
    """
    for session in [session for session in _sessions if session.phase and session.pid == os.getpid()]:
        _sessions.remove(session)
        session.flush(EXIT_SECONDS)
        session.run.finish("finished" if session.phase == "trained" else "failed", MAX_FINISH_SECONDS)
