"""The run that a trainer's process belongs to, and a thread that makes rows of what the trainer held."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rolloutdeck.client import init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import TrainerSession as Shared


class TrlSession(Shared):
    thread = "rolloutdeck-trl"
    who = "TRL callback"
    late = "generations whose rows could not be made in time"


def open_trl_session(args: Any, project: str, name: str) -> TrlSession:
    """ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN come before the given names, these before the trainer's `run_name`."""
    settings = Settings.from_environment()
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
    return TrlSession(run)
