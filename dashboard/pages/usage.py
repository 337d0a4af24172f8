"""How the next run comes to use a plan: the lines to paste, for a trainer as it is and for one with the plug-in."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from rolloutdeck import trainers
from rollouts.models import Project, Revision
from rollouts.plans import DEFAULT

NEXT = "NEXT-RUN"


@dataclass(frozen=True, slots=True)
class Command:
    said: str
    lines: str


def commands(project: Project, plan: str, revision: Revision | None, steps: int) -> list[Command]:
    """For the newest revision; none before there is one."""
    if revision is None:
        return []
    ref = f"{plan}@{revision.number}"
    return [
        Command(
            _(
                "A trainer without the plug-in, on its own machine: this lays the files out where it looks for them "
                "and prints the settings to start it with."
            ),
            pull(project, plan, ref, steps),
        ),
        Command(
            _(
                "A trainer with the plug-in fetches each step when it comes to it. It needs this in its environment, "
                "and a token from the settings:"
            ),
            environment(project, ref),
        ),
    ]


def pull(project: Project, plan: str, ref: str, steps: int) -> str:
    words = ["rolloutdeck", "pull", "--project", project.slug, "--run", NEXT, "--into", "replay"]
    words += ["--trainer", trainers.TRAINERS[0], "--steps", str(steps)]
    return shlex.join([*words, *([] if plan == DEFAULT else ["--plan", ref])])


def environment(project: Project, ref: str) -> str:
    """As a shell takes it, and as the trainer hands it to its workers on other machines."""
    told = {"ROLLOUTDECK_URL": settings.PUBLIC_URL, "ROLLOUTDECK_PROJECT": project.slug, "ROLLOUTDECK_PLAN": ref}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    handed = trainers.load(trainers.TRAINERS[0]).environment(told)
    return "\n".join([*exports, "# " + _("for workers on other machines, as settings of the trainer:"), *handed])
