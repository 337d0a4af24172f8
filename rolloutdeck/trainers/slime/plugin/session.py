"""The run of slime's rollout manager, and the thread that builds rows from its samples."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import EXIT_SECONDS, TrainerSession

SECRET_ARGUMENTS = ("wandb_key",)


class SlimeSession(TrainerSession):
    thread_name = "rolloutdeck-slime"
    log_name = "slime"
    overload_reason = "rollouts whose rows could not be made in time"


_sessions: dict[int, SlimeSession] = {}
_opening = threading.Lock()


def get_slime_session(args: Any) -> SlimeSession:
    """Returns the session of this process; the first call opens it."""
    with _opening:
        session = _sessions.get(os.getpid())
        if session is None or session.run.finished:
            session = _sessions[os.getpid()] = SlimeSession(open_slime_run(args))
        return session


def open_slime_run(args: Any) -> Run:
    """Opens the run. ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN override slime's `--wandb-project` and `--wandb-group`."""
    settings, arguments = Settings.from_environment(), read_arguments(args)
    save_folder = str(arguments.get("save") or "")
    return init(
        project=settings.project or str(arguments.get("wandb_project") or ""),
        name=settings.run or str(arguments.get("wandb_group") or ""),
        config=arguments,
        framework="slime",
        resume="allow" if arguments.get("load") and arguments.get("load") == arguments.get("save") else "",
        checkpoint_dir=save_folder if Path(save_folder).is_absolute() else None,
        exit_timeout=EXIT_SECONDS,
    )


def read_arguments(args: Any) -> Mapping[str, Any]:
    """Returns slime's arguments by name, including the changes of the YAML of `--custom-config-path`."""
    return {name: value for name, value in getattr(args, "__dict__", {}).items() if name not in SECRET_ARGUMENTS}
