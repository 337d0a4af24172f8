"""`rolloutdeck forget`: removes a prompt and its samples everywhere."""

import getpass
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from dashboard.management.server_command import ServerCommand
from rolloutdeck.cli import add_forget_arguments, format_count
from rollouts.backup import BackupError
from rollouts.errors import NotFoundError
from rollouts.forgetting import (
    BackupForgetting,
    ForgetResult,
    TraceReport,
    find_traces,
    forget_in_backups,
    forget_prompt,
)
from rollouts.models import Project

MAX_LINES = 20


class Command(ServerCommand):
    help = "Remove a prompt, its samples and everything that has their texts. Without --apply only say what would go."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_forget_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        project = Project.objects.filter(slug=options["project"]).first()
        if project is None:
            names = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:MAX_LINES])
            raise NotFoundError(f"There is no project {options['project']}. There are: {names}.")
        key, containing = options["prompt"], options["containing"]
        if not options["apply"]:
            self.print_report(find_traces(project, key, containing))
            self.stdout.write("Nothing was changed. The same command with --apply removes this.")
            return 0
        folder = options["backups"].expanduser().absolute() if options["backups"] else None
        if folder and not folder.is_dir():
            raise BackupError(f"There is no folder {folder}.")
        result = forget_prompt(project, key, containing=containing, user=getpass.getuser(), progress=self.stderr.write)
        self.print_report(result.found)
        status = self.print_result(result)
        if folder:
            self.stderr.write(f"Removing it from the backups in {folder}.")
            changes = forget_in_backups(
                folder, project.slug, key, containing=containing, remove=options["remove_backups"]
            )
            status = max(status, self.print_backups(changes))
        return status

    def print_report(self, report: TraceReport) -> None:
        self.stdout.write(f"Prompt {report.key} of project {report.project.slug}:")
        for name, count in report.counts.items():
            self.stdout.write(f"{count:>10,}  {name}")
        if report.text is None:
            self.stdout.write(
                "No sample has this prompt with a text of 12 characters or more, so only its key was searched."
            )
        self.print_list(describe_effects(report))

    def print_result(self, result: ForgetResult) -> int:
        left = result.left
        if not left.is_empty:
            counts = ", ".join(f"{count:,} {name}" for name, count in left.counts.items() if count)
            self.stderr.write(f"Not everything could be removed: {counts}. Run the command again.")
        for name in result.files[:MAX_LINES]:
            self.stderr.write(f"not removed yet, in use by a backup or an upload: {name}")
        if result.is_complete:
            self.stdout.write(
                "Removed. The prompt is left out if it arrives again. Backups have it until --backups names them."
            )
        return 0 if result.is_complete else 1

    def print_backups(self, changes: BackupForgetting) -> int:
        groups = {"changed": changes.changed, "removed": changes.removed, "without it": changes.unchanged}
        for verb, names in groups.items():
            if names:
                self.stdout.write(f"Backups {verb}: {', '.join(names)}.")
        verb = "is" if changes.files == 1 else "are"
        self.stdout.write(f"{format_count(changes.files, 'file')} of backups {verb} removed.")
        if changes.incomplete:
            self.stderr.write(f"Something is left in: {', '.join(changes.incomplete)}. Run the command again.")
        return 1 if changes.incomplete else 0

    def print_list(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.stdout.write(f"  {line}")


def describe_effects(report: TraceReport) -> Iterator[str]:
    """Yields what else changes, and what the command cannot remove."""
    for pin in report.pins[:MAX_LINES]:
        yield f"the pin of {pin.split} step {pin.step} of {pin.run} cannot be replayed any more"
    for plan in report.plans[:MAX_LINES]:
        yield f"the replay plan {plan} has such a pin"
    if count := sum(map(len, report.bodies.others.values())):
        yield f"{count:,} samples of other prompts contain the text and stay; --containing removes them too"
    yield from limit_lines([f"a person wrote the text; remove it there: {note}" for note in report.evidence.notes])
    unsearched = [f"dump {dump.pk} ({dump.state}) of {dump.run} cannot be searched" for dump in report.unsearched]
    yield from limit_lines(unsearched)
    yield from limit_lines([f"the body file {path} cannot be read; run fsck" for path in report.bodies.unreadable])
    if report.waiting:
        yield f"{report.waiting:,} dumps wait to be indexed; after --apply this leaves the prompt out"
    if report.uploads:
        yield f"{report.uploads:,} uploads are not complete; the sweep removes those that stop within a day"


def limit_lines(lines: list[str]) -> Iterator[str]:
    yield from lines[:MAX_LINES]
    if len(lines) > MAX_LINES:
        yield f"… and {len(lines) - MAX_LINES:,} more"
