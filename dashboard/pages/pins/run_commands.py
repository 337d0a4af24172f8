"""How the next run uses a plan: the lines to paste, for a trainer with and without the plug-in."""

import shlex
from dataclasses import dataclass

from django.conf import settings
from django.utils.translation import gettext as _

from rolloutdeck.trainer_api import TRAINERS, load_trainer
from rollouts.models import Project, Revision, Run
from rollouts.replay import DEFAULT_PLAN_NAME, find_first_steps, find_plan_trainer, has_unknown_trainer

NEXT_RUN_NAME = "NEXT-RUN"


@dataclass(frozen=True, slots=True)
class RunCommand:
    text: str
    lines: str


def build_run_commands(project: Project, plan: str, revision: Revision | None, steps: int) -> list[list[RunCommand]]:
    """The commands of each way to replay the newest revision; empty if there is no revision. `steps` is the number of
    steps for which `rolloutdeck pull` places files, if the plan replays steps after its last target."""
    if revision is None:
        return []
    ref, trainer = f"{plan}@{revision.number}", find_plan_trainer(revision) or TRAINERS[0]
    if has_unknown_trainer(revision):
        text = _(
            "A custom training loop that calls run.replay_plan() fetches each step when it needs it. Set these "
            "environment variables. On another machine it also needs an API token with the scopes ingest and read, "
            "created under Settings:"
        )
        return [[RunCommand(text, build_environment_lines(project, ref, ""))]]
    loader = load_trainer(trainer)
    text = _(
        "A trainer without the plug-in: run this on its machine. It puts the files where the trainer looks for them "
        "and prints the settings to start with."
    )
    if loader.replays_only:
        text = _(
            "The trainer without the plug-in: run this on its machine. It puts the files where the trainer looks for "
            "them and prints the settings to start with. The trainer then generates nothing: it trains only on these "
            "files, step by step, and ends at the first step without a file."
        )
    placed = None if revision.action == "cache" else max(steps, count_planned_steps(revision))
    ways = [[RunCommand(text, build_pull_command(project, plan, ref, trainer, placed))]]
    if loader.replay_lines is None:
        return ways
    text = _(
        "A trainer with the Rolloutdeck plug-in fetches each step when it needs it. Set these environment variables. "
        "On another machine it also needs an API token with the scopes ingest and read, created under Settings:"
    )
    settings_command = RunCommand(_("Also pass to the trainer:"), "\n".join(loader.replay_lines()))
    return [*ways, [RunCommand(text, build_environment_lines(project, ref, trainer)), settings_command]]


def count_planned_steps(revision: Revision) -> int:
    """The number of steps from the trainer's first one to the last target."""
    targets = {entry.pin_id: entry.target_step for entry in revision.entries.all()}
    first = min(find_first_steps(list(targets)).values(), default=1)
    return max((entry.target_step for entry in revision.entries.all()), default=0) + 1 - first


def build_pull_command(project: Project, plan: str, ref: str, trainer: str, steps: int | None) -> str:
    """Without `steps`, files are placed up to the last target."""
    words = ["rolloutdeck", "pull", "--project", project.slug, "--run", NEXT_RUN_NAME, "--into", "replay"]
    words += ["--trainer", trainer]
    words += [] if steps is None else ["--steps", str(steps)]
    words += [] if plan == DEFAULT_PLAN_NAME else ["--plan", ref]
    required = load_trainer(trainer).required_settings
    return shlex.join([*words, *(["--set", *required] if required else [])])


def build_prompts_command(project: Project, plan: str, run: Run | None) -> str:
    """The command that sends the prompts of a dry run, so that the preview can compare them."""
    words = ["rolloutdeck", "plan", "--project", project.slug, "--run", run.name if run else NEXT_RUN_NAME]
    words += [] if plan == DEFAULT_PLAN_NAME else ["--plan", plan]
    return shlex.join([*words, "--prompts", "prompts.jsonl"])


def build_environment_lines(project: Project, ref: str, trainer: str) -> str:
    """Lines for a shell, and the settings with which the trainer passes them to its workers on other machines."""
    variables = {"ROLLOUTDECK_URL": settings.PUBLIC_URL, "ROLLOUTDECK_PROJECT": project.slug, "ROLLOUTDECK_PLAN": ref}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if trainer and (build_worker_lines := load_trainer(trainer).environment_lines):
        lines += ["# " + _("trainer settings for workers on other machines:"), *build_worker_lines(variables)]
    return "\n".join(lines)
