"""How the next run comes to use a plan: the lines to paste, for a trainer as it is and for one with the plug-in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from rolloutdeck.trainer_api import TRAINERS, load_trainer
from rollouts.models import Project, Revision
from rollouts.replay import DEFAULT_PLAN_NAME, find_plan_trainer, has_unknown_trainer

NEXT_RUN_NAME = "NEXT-RUN"


@dataclass(frozen=True, slots=True)
class RunCommand:
    said: str
    lines: str


def build_run_commands(project: Project, plan: str, revision: Revision | None, steps: int) -> list[list[RunCommand]]:
    """Each way, for the newest revision, of whose first `steps` steps files are laid out; none before there is one."""
    if revision is None:
        return []
    ref, trainer = f"{plan}@{revision.number}", find_plan_trainer(revision) or TRAINERS[0]
    if has_unknown_trainer(revision):
        said = _(
            "A custom training loop that calls run.replay_plan() fetches each step when it needs it. Set these "
            "environment variables. On another machine it also needs an API token with the scopes ingest and read, "
            "created under Settings:"
        )
        return [[RunCommand(said, build_environment_lines(project, ref, ""))]]
    laid = _(
        "A trainer without the plug-in: run this on its machine. It puts the files where the trainer looks for them "
        "and prints the settings to start with."
    )
    loader = load_trainer(trainer)
    if loader.replays_only:
        laid = _(
            "The trainer without the plug-in: run this on its machine. It puts the files where the trainer looks for "
            "them and prints the settings to start with. The trainer then generates nothing: it trains only on these "
            "files, step by step, and ends at the first step without a file."
        )
    found = [[RunCommand(laid, build_pull_command(project, plan, ref, trainer, steps))]]
    said = _(
        "A trainer with the Rolloutdeck plug-in fetches each step when it needs it. Set these environment variables. "
        "On another machine it also needs an API token with the scopes ingest and read, created under Settings:"
    )
    if loader.replay_lines is None:
        return found
    own = RunCommand(_("Also pass to the trainer:"), "\n".join(loader.replay_lines()))
    return [*found, [RunCommand(said, build_environment_lines(project, ref, trainer)), own]]


def build_pull_command(project: Project, plan: str, ref: str, trainer: str, steps: int) -> str:
    words = ["rolloutdeck", "pull", "--project", project.slug, "--run", NEXT_RUN_NAME, "--into", "replay"]
    words += ["--trainer", trainer, "--steps", str(steps)]
    words += [] if plan == DEFAULT_PLAN_NAME else ["--plan", ref]
    asked = load_trainer(trainer).required_settings
    return shlex.join([*words, *(["--set", *asked] if asked else [])])


def build_environment_lines(project: Project, ref: str, trainer: str) -> str:
    """As a shell takes it, and as a trainer that starts workers on other machines hands it to them."""
    told = {"ROLLOUTDECK_URL": settings.PUBLIC_URL, "ROLLOUTDECK_PROJECT": project.slug, "ROLLOUTDECK_PLAN": ref}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    lines = load_trainer(trainer).environment_lines if trainer else None
    if lines is None:
        return "\n".join(exports)
    return "\n".join([*exports, "# " + _("trainer settings for workers on other machines:"), *lines(told)])
