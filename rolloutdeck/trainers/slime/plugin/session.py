"""The run that slime's rollout manager belongs to, and a thread that makes rows of its samples."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.client import Run, init
from rolloutdeck.lib import Settings
from rolloutdeck.trainers.common import EXIT_SECONDS
from rolloutdeck.trainers.common import TrainerSession as Shared

SECRETS = ("wandb_key",)


class SlimeSession(Shared):
    thread = "rolloutdeck-slime"
    who = "slime"
    late = "rollouts whose rows could not be made in time"


_sessions: dict[int, SlimeSession] = {}
_opening = threading.Lock()


def get_slime_session(args: Any) -> SlimeSession:
    """The session of this process, opened by the first that asks."""
    with _opening:
        found = _sessions.get(os.getpid())
        if found is None or found.run.finished:
            found = _sessions[os.getpid()] = SlimeSession(open_slime_run(args))
        return found


def open_slime_run(args: Any) -> Run:
    """ROLLOUTDECK_PROJECT and ROLLOUTDECK_RUN come before slime's `--wandb-project` and `--wandb-group`."""
    settings, told = Settings.from_environment(), settings_of(args)
    save = str(told.get("save") or "")
    return init(
        project=settings.project or str(told.get("wandb_project") or ""),
        name=settings.run or str(told.get("wandb_group") or ""),
        config=told,
        framework="slime",
        resume="allow" if told.get("load") and told.get("load") == told.get("save") else "",
        checkpoint_dir=save if Path(save).is_absolute() else None,
        exit_timeout=EXIT_SECONDS,
    )


def settings_of(args: Any) -> Mapping[str, Any]:
    """slime's arguments by their names, as the YAML of `--custom-config-path` changed them."""
    return {name: value for name, value in getattr(args, "__dict__", {}).items() if name not in SECRETS}
