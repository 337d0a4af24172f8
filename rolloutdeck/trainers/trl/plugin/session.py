"""The run of a trainer process, and the thread that builds its rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rolloutdeck.client import init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import TrainerSession


class TrlSession(TrainerSession):
    thread_name = "rolloutdeck-trl"
    log_name = "TRL callback"
    overload_reason = "generations whose rows could not be made in time"


def open_trl_session(args: Any, project: str, name: str) -> TrlSession:
    """Opens the run. ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN override the arguments, these the trainer's `run_name`."""
    settings = Settings.from_environment()
    saves = getattr(args, "save_strategy", "no") != "no"
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    run = init(
        project=settings.project or project,
        name=settings.run or name or str(getattr(args, "run_name", None) or ""),
        config=args.to_dict(),
        framework="trl",
        checkpoint_dir=Path(args.output_dir).absolute() if saves and args.output_dir else None,
        producer=f"rank{rank}" if world > 1 else "",
    )
    return TrlSession(run)
