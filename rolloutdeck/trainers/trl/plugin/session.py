"""The run of a trainer process, and the thread that builds its rows."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import TokenBudget, TrainerSession, open_trainer_run
from rolloutdeck.trainers.trl.plugin.rows import CapturedGeneration


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


def open_trl_session(args: Any, project: str, name: str) -> TrlSession:
    saves = getattr(args, "save_strategy", "no") != "no" and args.output_dir
    checkpoints = str(Path(args.output_dir).absolute()) if saves else ""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    producer = f"rank{rank}" if world > 1 else ""
    name = name or str(getattr(args, "run_name", None) or "")
    return TrlSession(open_trainer_run("trl", project, name, checkpoints, config=args.to_dict(), producer=producer))
