"""`rolloutdeck fsck`: compares rows and stored files, verifies hashes, and repairs."""

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from dashboard.management.server_command import ProgressPrinter, ServerCommand
from rolloutdeck.cli import add_fsck_arguments, format_count
from rolloutdeck.lib import format_bytes
from rollouts.integrity import CheckOptions, CheckResult, Repair, check_integrity, repair_problems
from rollouts.storage import KINDS

MAX_LINES = 50
COLUMNS = ("files", "size", "verified", "missing", "damaged", "orphans")


class Command(ServerCommand):
    help = "Find rows without files, files without rows and damaged files. Works while the server runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_fsck_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        rate = options["rate"] * 1e6 if options["rate"] else None
        check = CheckOptions(sample=options["sample"] / 100, rate=rate, grace=options["grace"])
        result = check_integrity(check, ProgressPrinter("verified"))
        repairs = repair_problems(result.problems, check.grace) if options["repair"] else []
        if options["json"]:
            self.stdout.write(json.dumps(build_report(result, repairs)))
        else:
            self.print_table(result)
            self.print_problems(result, repairs)
        return 1 if result.problems else 0

    def print_table(self, result: CheckResult) -> None:
        self.stdout.write("".join([f"{'':8}", *(f"{name:>11}" for name in COLUMNS)]))
        for kind in KINDS:
            count = result.counts[kind]
            cells = [f"{count.files:,}", format_bytes(count.bytes), f"{count.verified:,}"]
            cells += [f"{result.count(kind, problem):,}" for problem in ("missing", "damaged", "orphan")]
            self.stdout.write("".join([f"{kind:8}", *(f"{cell:>11}" for cell in cells)]))

    def print_problems(self, result: CheckResult, repairs: list[Repair]) -> None:
        actions = {repair.problem: repair.action for repair in repairs}
        problems = format_count(len(result.problems), "problem")
        for problem in result.problems[:MAX_LINES]:
            detail = f": {problem.detail}" if problem.detail else ""
            action = f" -> {actions[problem]}" if problem in actions else ""
            self.stdout.write(f"{problem.problem:9}{problem.name}{detail}{action}")
        if len(result.problems) > MAX_LINES:
            self.stdout.write(f"… and {len(result.problems) - MAX_LINES:,} more (--json lists all)")
        if not result.problems:
            self.stdout.write("Clean.")
        elif repairs:
            repaired = sum(repair.repaired for repair in repairs)
            self.stdout.write(f"{problems}, {repaired:,} repaired. Run fsck again to check.")
        else:
            self.stdout.write(f"{problems}. `rolloutdeck fsck --repair` repairs what it can.")


def build_report(result: CheckResult, repairs: list[Repair]) -> dict[str, Any]:
    return {
        "clean": not result.problems,
        "checked": {kind: asdict(count) for kind, count in result.counts.items()},
        "problems": [asdict(problem) for problem in result.problems],
        "repairs": [
            {"name": repair.problem.name, "action": repair.action, "repaired": repair.repaired} for repair in repairs
        ],
    }
