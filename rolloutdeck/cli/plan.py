"""`rolloutdeck plan`: what the next run replays, step by step, and whether it fits a run."""

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
BEYOND = 4  # steps shown after the last target, so that what comes then is seen
REPLAY_LABELS = {True: "refused", False: "replayed"}


def main(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    server, project = build_server_client(settings), require_project(args, settings)
    if not 0 <= args.steps <= MAX_PREVIEW_STEPS:
        raise UsageError(f"--steps must be 1 to {MAX_PREVIEW_STEPS:,}.")
    name, _, revision = (args.plan or settings.plan or DEFAULT_PLAN).partition("@")
    asking = args.run or settings.run
    run = _known(server, asking, project) if asking else None
    told = _told(server, project, {"plan": name, "revision": revision or None, "run": run["id"] if run else None})
    if args.json:
        print(json.dumps(told, ensure_ascii=False))
        return 0
    try:
        plan = parse_plan(told)
    except ValueError as error:
        raise UsageError(format_sentence(str(error))) from error
    _print(plan, run is not None, args.steps)
    if plan and not asking:
        print_message("Say --run NAME to see whether it fits that run.")
    return 1 if any(entry.refused for entry in plan.entries) else 0


def _known(server: ServerClient, name: str, project: str) -> dict[str, Any] | None:
    """The run that will replay; None, which is said, where it has not begun."""
    try:
        return find_run(server, name, project)
    except RunNotFoundError as unknown:
        print_message(
            f"{unknown} Until it has begun, or `rolloutdeck pull` has been there, the plan is compared with nothing."
        )
        return None


def _told(server: ServerClient, project: str, query: Mapping[str, Any]) -> dict[str, Any]:
    return dict(send_request(server, "GET", f"projects/{quote(project, safe='')}/replay-plan/", query=query).json())


def _print(plan: PlanRevision, judged: bool, steps: int) -> None:
    if not plan:
        print(f"Plan {plan.name} replays nothing.")
        print_message("Pin a step on its page, give it a target step in the plan, and look again.")
        return
    also = ", nothing that is flagged" if plan.exclude_flagged else ""
    mismatch = "generate" if plan.on_mismatch == "generate" else "stop"
    print(f"Plan {plan}: {plan.action}, {mismatch} where a pin does not fit{also}.")
    _print_entries(plan.entries, judged=judged)
    _print_strip(plan, steps)
    _print_differences([(entry.target_step, found) for entry in plan.entries for found in entry.differences])


def _print_differences(found: Sequence[tuple[int, FactDifference]]) -> None:
    """By target step; facts that neither side tells in one line."""
    for target, difference in found:
        if not difference.untold:
            print(f"  step {target}: {_difference(difference)}")
    if untold := dict.fromkeys(difference.fact for _, difference in found if difference.untold):
        print(
            f"  not compared, since neither side tells it: {remove_control_characters(', '.join(untold), lines=False)}"
        )


def _print_entries(entries: Sequence[PlanEntry], *, judged: bool) -> None:
    rows = [("step", "pin", "replays", "bytes", *(["verdict"] if judged else []))]
    for entry in entries:
        name = remove_control_characters(str(entry.source.get("name", "")), lines=False)
        place = f"step {entry.source.get('step')} of {name}"
        state = _state([artifact.state for artifact in entry.artifacts])
        verdict = [REPLAY_LABELS[entry.refused]] if judged else []
        rows.append((str(entry.target_step), str(entry.pin), place, state, *verdict))
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in used}
    for row in rows:
        print("  ".join(f"{row[at]:<{widths[at]}}" for at in used).rstrip())


def _print_strip(plan: PlanRevision, steps: int) -> None:
    """Which steps each pin is replayed at, and which generate."""
    first = _first(plan.entries)
    last = first + steps - 1 if steps else max(plan.targets) + BEYOND
    cells = resolve_targets(plan.action, plan.targets, range(first, min(last, MAX_PREVIEW_STEPS) + 1))
    replayed: dict[int, list[int]] = {}
    for step, target in cells:
        if target is not None:
            replayed.setdefault(target, []).append(step)
    for target, at in sorted(replayed.items()):
        print(f"{_steps(at)} replay{'s' if len(at) == 1 else ''} the pin of {target}")
    if generated := [step for step, target in cells if target is None]:
        print(f"{_steps(generated)} generate{'s' if len(generated) == 1 else ''}")


def _first(entries: Sequence[PlanEntry]) -> int:
    """The number of a run's first step, as the trainer counts that would load these pins."""
    formats = [str(artifact.facts.get("format")) for entry in entries for artifact in entry.artifacts]
    return min(map(first_step, formats), default=1)


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {format_step_ranges(steps)}"


def _state(states: Sequence[str]) -> str:
    """That of the artifact that is furthest from being ready; `none` of a pin that has none."""
    return next((state for state in ("unsafe", "gone", "waiting", "uploading", "ready") if state in states), "none")


def _difference(found: FactDifference) -> str:
    pinned, asking = (json.dumps(value, ensure_ascii=False) for value in (found.pinned, found.asking))
    known = [value if value != "null" else "unknown" for value in (pinned, asking)]
    loosened = ", loosened by the project" if found.loosened else ""
    return remove_control_characters(
        f"{found.verdict}: {found.fact} is {known[0]} in the pin, {known[1]} here{loosened}", lines=False
    )
