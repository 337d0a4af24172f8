"""The run of slime's rollout manager, and the thread that builds rows from its samples."""

from __future__ import annotations

from typing import Any

from rolloutdeck.client import Run
from rolloutdeck.trainers.common import EXIT_SECONDS, GuidanceTally, TrainerSession, get_session, open_trainer_run

SECRET_ARGUMENTS = ("wandb_key",)


class SlimeSession(TrainerSession):
    thread_name = "rolloutdeck-slime"
    log_name = "slime"
    overload_reason = "rollouts whose rows could not be made in time"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.tally = GuidanceTally()
        self.guided: Any = None  # the GuidedRollout whose rewards slime is about to normalise


def get_slime_session(args: Any) -> SlimeSession:
    """Returns the session of this process; the first call opens it."""
    return get_session("slime", lambda: SlimeSession(open_slime_run(args)))


def open_slime_run(args: Any) -> Run:
    """Opens the run, named by `--wandb-project` and `--wandb-group`.

    Its settings are slime's arguments, including the changes of the YAML of `--custom-config-path`.
    """
    arguments = {name: value for name, value in getattr(args, "__dict__", {}).items() if name not in SECRET_ARGUMENTS}
    project, name, save = (str(arguments.get(key) or "") for key in ("wandb_project", "wandb_group", "save"))
    resumes = bool(arguments.get("load")) and arguments["load"] == arguments.get("save")
    options = {"config": arguments, "resume": "allow" if resumes else "", "exit_timeout": EXIT_SECONDS}
    return open_trainer_run("slime", project, name, save, **options)
