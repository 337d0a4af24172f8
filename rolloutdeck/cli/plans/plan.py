"""`rolloutdeck plan`: prints what a replay plan will do at each step, and what it did in a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import (
    clean_line,
    connect,
    find_run,
    format_count,
    format_sentence,
    print_message,
    require_project,
    send_request,
)
from rolloutdeck.cli.plans.entries import has_outcome, print_entries
from rolloutdeck.cli.plans.prompts import read_step_prompts, send_step_prompts
from rolloutdeck.cli.plans.selection import describe_setting, print_effects
from rolloutdeck.errors import RunNotFoundError, UsageError
from rolloutdeck.lib import ServerClient
from rolloutdeck.protocol import FactDifference, format_step_ranges, resolve_targets
from rolloutdeck.replay import DEFAULT_PLAN, PlanEntry, PlanRevision, parse_plan
from rolloutdeck.trainer_api import format_ends_without_file, get_first_step

PIN_FIRST = "Pin a step on its page and give it a target step in the plan."  # what to do with an empty plan
MAX_PREVIEW_STEPS = 10_000
STEPS_AFTER_LAST_TARGET = 4  # steps shown after the last target, to show what the plan's action does there


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    project = require_project(args, settings)
    if not 0 <= args.steps <= MAX_PREVIEW_STEPS:
        raise UsageError(f"--steps must be 1 to {MAX_PREVIEW_STEPS:,}.")
    run_name = args.run or settings.run
    if args.prompts and not run_name:
        raise UsageError("--prompts needs the run that will replay: use --run NAME.")
    prompts = read_step_prompts(args.prompts) if args.prompts else {}
    run = _find_replaying_run(server, run_name, project, is_sending=bool(args.prompts)) if run_name else None
    if args.prompts:
        run = run or create_planned_run(server, project, run_name, settings.run_id)
        send_step_prompts(server, run["id"], prompts, args.step_kind)
        print_message(f"Sent the prompts of {format_count(len(prompts), 'step')} of {run_name}.")
    response = load_plan(server, project, args.plan or settings.plan or DEFAULT_PLAN, run["id"] if run else None)
    if args.json:
        print(json.dumps(response, ensure_ascii=False))
        return 0
    plan = read_plan_response(response)
    _print_plan(plan, run is not None, args.steps)
    if plan and not run_name:
        print_message("Use --run NAME to compare settings and prompts with a run, and to see what it replayed.")
    return 1 if any(map(_has_problem, plan.entries)) else 0


def _has_problem(entry: PlanEntry) -> bool:
    """Whether the entry is known not to be replayed, or was not replayed; not if the plan wants the step again."""
    if entry.regenerates_step:
        return False
    if has_outcome(entry):
        return str(entry.outcome["state"]) != "replayed"
    return entry.is_incompatible or entry.preview.get("state") in ("conflict", "will_generate")


def _find_replaying_run(server: ServerClient, name: str, project: str, *, is_sending: bool) -> dict[str, Any] | None:
    """Returns the run that will replay. If it is unknown, prints a message, unless it is created, and returns None."""
    try:
        return find_run(server, name, project)
    except RunNotFoundError as unknown:
        hint = "only after the run has started, used `rolloutdeck pull` or sent its prompts (--prompts)."
        if not is_sending:
            print_message(f"{unknown} The plan can be compared with the run {hint}")
        return None


def create_planned_run(
    server: ServerClient, project: str, name: str, run_id: str = "", **fields: Any
) -> dict[str, Any]:
    """Creates a run before it starts and returns it. Its state is `planned` until the training starts."""
    body = {"project": project, "name": name, "resume": "allow", **fields, **({"uid": run_id} if run_id else {})}
    created = send_request(server, "POST", "runs/", body).json()
    print_message(f"Created the run {name} in {project}, planned. The next training with this name continues it.")
    return dict(send_request(server, "GET", f"runs/{quote(created['id'], safe='')}/").json())


def load_plan(server: ServerClient, project: str, plan: str, run: str | None = None) -> dict[str, Any]:
    """Returns the server's response for a plan (`NAME` or `NAME@REVISION`), compared with the run of this id.

    Raises UsageError if the project has no plan of this name. `default` exists in every project.
    """
    name, _, revision = plan.partition("@")
    path = f"projects/{quote(project, safe='')}/replay-plan/"
    # Without `revision`, since the server has no revision of an unknown plan, and its message names no plan.
    response = dict(send_request(server, "GET", path, query={"plan": name or None, "run": run}).json())
    if name not in ("", DEFAULT_PLAN) and not response.get("revision"):
        known = ", ".join(dict.fromkeys([DEFAULT_PLAN, *response.get("plans", ())]))
        raise UsageError(f"There is no replay plan {name!r} in {project}. Available: {known}.")
    if not revision:
        return response
    return dict(send_request(server, "GET", path, query={"plan": name, "revision": revision, "run": run}).json())


def read_plan_response(response: dict[str, Any]) -> PlanRevision:
    """Returns the plan. Raises UsageError if the response is invalid."""
    try:
        return parse_plan(response)
    except ValueError as error:
        raise UsageError(format_sentence(error)) from error


def _print_plan(plan: PlanRevision, has_run: bool, steps: int) -> None:
    if not plan:
        print(f"Plan {plan.name} replays nothing.")
        print_message(PIN_FIRST)
        return
    mismatch = "generate" if plan.on_mismatch == "generate" else "stop"
    print(f"Plan {plan}: {plan.action}, {mismatch} if a pin cannot be replayed{describe_setting(plan)}.")
    print_entries(plan.entries, has_run=has_run)
    print_effects(plan.entries)
    print_timeline(plan, steps)
    print_differences([(entry.target_step, difference) for entry in plan.entries for difference in entry.differences])


def print_differences(differences: Sequence[tuple[int, FactDifference]]) -> None:
    """Prints each difference once, with its target steps. Facts that are unknown on both sides share one line."""
    targets_by_text: dict[str, list[int]] = {}
    for target, difference in differences:
        if not difference.unknown_on_both_sides:
            targets_by_text.setdefault(_describe_difference(difference), []).append(target)
    for text, targets in targets_by_text.items():
        print(f"  {_format_steps(sorted(set(targets)))}: {text}")
    if unknown := dict.fromkeys(difference.fact for _, difference in differences if difference.unknown_on_both_sides):
        print(f"  unknown on both sides, not compared: {clean_line(', '.join(unknown))}")


def print_timeline(plan: PlanRevision, steps: int) -> None:
    """Prints at which steps each pin is replayed, and which steps generate. Without an outcome, a pin that is known not
    to fit the run is not replayed."""
    # The first step of a run is 0 or 1, as counted by the trainer that loads these pins.
    formats = {str(artifact.facts.get("format")) for entry in plan.entries for artifact in entry.artifacts}
    first = min(map(get_first_step, formats), default=1)
    last = first + steps - 1 if steps else max(plan.targets) + STEPS_AFTER_LAST_TARGET
    if last - first >= MAX_PREVIEW_STEPS:
        print(f"steps after {first + MAX_PREVIEW_STEPS - 1:,} are not shown")
        last = first + MAX_PREVIEW_STEPS - 1
    resolved = resolve_targets(plan.action, plan.targets, range(first, last + 1))
    refused = {entry.target_step for entry in plan.entries if not has_outcome(entry) and _has_problem(entry)}
    if plan.on_mismatch == "generate":
        resolved = [(step, None if target in refused else target) for step, target in resolved]
    elif (stopping := next((step for step, target in resolved if target in refused), None)) is not None:
        print(f"step {stopping} stops the run")
        resolved = [(step, target) for step, target in resolved if step < stopping]
    end = next((step for step, target in resolved if target is None), None)
    if end is not None and any(map(format_ends_without_file, formats)):
        print(f"step {end} has no file to load: the run ends there, since its trainer generates nothing")
        resolved = [(step, target) for step, target in resolved if step < end]
    replayed: dict[int, list[int]] = {}
    for step, target in resolved:
        if target is not None:
            replayed.setdefault(target, []).append(step)
    same = [target for target, replaying in replayed.items() if replaying == [target]]
    if len(same) > 1:
        print(f"{_format_steps(same)} replay the pins of these target steps")
        replayed = {target: steps for target, steps in replayed.items() if target not in same}
    for target, replaying in sorted(replayed.items()):
        print(f"{_format_steps(replaying)} replay{'s' if len(replaying) == 1 else ''} the pin of target step {target}")
    if generated := [step for step, target in resolved if target is None]:
        print(f"{_format_steps(generated)} generate{'s' if len(generated) == 1 else ''}")


def _format_steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {format_step_ranges(steps)}"


def _describe_difference(difference: FactDifference) -> str:
    values = (json.dumps(value, ensure_ascii=False) for value in (difference.pinned, difference.asking))
    pinned, current = (value if value != "null" else "unknown" for value in values)
    overridden = ", overridden by the project" if difference.loosened else ""
    text = f"{difference.verdict}: {difference.fact} is {pinned} in the pin, {current} in the run{overridden}"
    return clean_line(text)
