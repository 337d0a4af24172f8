"""`rolloutdeck plan`: prints which steps of a replay plan are replayed, and whether it fits a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import (
    build_server_client,
    format_sentence,
    load_settings,
    print_message,
    require_project,
    send_request,
)
from rolloutdeck.cli.samples import find_run, remove_control_characters
from rolloutdeck.errors import RunNotFoundError, UsageError
from rolloutdeck.lib import ServerClient
from rolloutdeck.protocol import FactDifference, format_step_ranges, resolve_targets
from rolloutdeck.replay import DEFAULT_PLAN, PlanEntry, PlanRevision, parse_plan
from rolloutdeck.trainer_api import first_step

MAX_PREVIEW_STEPS = 10_000
STEPS_AFTER_LAST_TARGET = 4  # steps shown after the last target, to show what the plan's action does there
RESULT_LABELS = {True: "incompatible", False: "replayed"}


def main(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    server, project = build_server_client(settings), require_project(args, settings)
    if not 0 <= args.steps <= MAX_PREVIEW_STEPS:
        raise UsageError(f"--steps must be 1 to {MAX_PREVIEW_STEPS:,}.")
    name, _, revision = (args.plan or settings.plan or DEFAULT_PLAN).partition("@")
    run_name = args.run or settings.run
    run = _find_replaying_run(server, run_name, project) if run_name else None
    query = {"plan": name, "revision": revision or None, "run": run["id"] if run else None}
    response = _load_plan(server, project, query)
    if args.json:
        print(json.dumps(response, ensure_ascii=False))
        return 0
    try:
        plan = parse_plan(response)
    except ValueError as error:
        raise UsageError(format_sentence(str(error))) from error
    _print_plan(plan, run is not None, args.steps)
    if plan and not run_name:
        print_message("Use --run NAME to check whether the plan fits that run.")
    return 1 if any(entry.is_incompatible for entry in plan.entries) else 0


def _find_replaying_run(server: ServerClient, name: str, project: str) -> dict[str, Any] | None:
    """Returns the run that will replay. If it has not started, prints a message and returns None."""
    try:
        return find_run(server, name, project)
    except RunNotFoundError as unknown:
        print_message(
            f"{unknown} The plan can be compared with the run only after the run has started or used "
            "`rolloutdeck pull`."
        )
        return None


def _load_plan(server: ServerClient, project: str, query: Mapping[str, Any]) -> dict[str, Any]:
    return dict(send_request(server, "GET", f"projects/{quote(project, safe='')}/replay-plan/", query=query).json())


def _print_plan(plan: PlanRevision, has_run: bool, steps: int) -> None:
    if not plan:
        print(f"Plan {plan.name} replays nothing.")
        print_message("Pin a step on its page and give it a target step in the plan.")
        return
    flagged = ", without flagged samples" if plan.exclude_flagged else ""
    mismatch = "generate" if plan.on_mismatch == "generate" else "stop"
    print(f"Plan {plan}: {plan.action}, {mismatch} if a pin does not fit{flagged}.")
    _print_entries(plan.entries, has_run=has_run)
    _print_timeline(plan, steps)
    _print_differences([(entry.target_step, difference) for entry in plan.entries for difference in entry.differences])


def _print_differences(differences: Sequence[tuple[int, FactDifference]]) -> None:
    """Prints the differences by target step. Facts that are unknown on both sides share one line."""
    for target, difference in differences:
        if not difference.unknown_on_both_sides:
            print(f"  step {target}: {_describe_difference(difference)}")
    if unknown := dict.fromkeys(difference.fact for _, difference in differences if difference.unknown_on_both_sides):
        print(f"  unknown on both sides, not compared: {remove_control_characters(', '.join(unknown), lines=False)}")


def _print_entries(entries: Sequence[PlanEntry], *, has_run: bool) -> None:
    rows = [("step", "pin", "replays", "files", *(["result"] if has_run else []))]
    for entry in entries:
        name = remove_control_characters(str(entry.source.get("name", "")), lines=False)
        source = f"step {entry.source.get('step')} of {name}"
        state = _find_worst_state([artifact.state for artifact in entry.artifacts])
        result = [RESULT_LABELS[entry.is_incompatible]] if has_run else []
        rows.append((str(entry.target_step), str(entry.pin), source, state, *result))
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    for row in rows:
        print("  ".join(f"{row[column]:<{widths[column]}}" for column in columns).rstrip())


def _print_timeline(plan: PlanRevision, steps: int) -> None:
    """Prints at which steps each pin is replayed, and which steps generate."""
    first = _find_first_step(plan.entries)
    last = first + steps - 1 if steps else max(plan.targets) + STEPS_AFTER_LAST_TARGET
    resolved = resolve_targets(plan.action, plan.targets, range(first, min(last, MAX_PREVIEW_STEPS) + 1))
    replayed: dict[int, list[int]] = {}
    for step, target in resolved:
        if target is not None:
            replayed.setdefault(target, []).append(step)
    for target, replaying in sorted(replayed.items()):
        print(f"{_format_steps(replaying)} replay{'s' if len(replaying) == 1 else ''} the pin of target step {target}")
    if generated := [step for step, target in resolved if target is None]:
        print(f"{_format_steps(generated)} generate{'s' if len(generated) == 1 else ''}")


def _find_first_step(entries: Sequence[PlanEntry]) -> int:
    """Returns the number of a run's first step (0 or 1), as counted by the trainer that loads these pins."""
    formats = [str(artifact.facts.get("format")) for entry in entries for artifact in entry.artifacts]
    return min(map(first_step, formats), default=1)


def _format_steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {format_step_ranges(steps)}"


def _find_worst_state(states: Sequence[str]) -> str:
    """Returns the state of the least ready artifact; `none` if the pin has no artifact."""
    return next((state for state in ("unsafe", "gone", "waiting", "uploading", "ready") if state in states), "none")


def _describe_difference(difference: FactDifference) -> str:
    values = (json.dumps(value, ensure_ascii=False) for value in (difference.pinned, difference.asking))
    pinned, current = (value if value != "null" else "unknown" for value in values)
    overridden = ", overridden by the project" if difference.loosened else ""
    text = f"{difference.verdict}: {difference.fact} is {pinned} in the pin, {current} in the run{overridden}"
    return remove_control_characters(text, lines=False)
