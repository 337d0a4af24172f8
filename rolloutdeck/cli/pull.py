"""`rolloutdeck pull`: downloads the files of a replay plan into a folder that a trainer loads without our plug-in."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import (
    build_server_client,
    format_count,
    format_sentence,
    load_settings,
    print_message,
    require_project,
    send_request,
)
from rolloutdeck.cli.samples import remove_control_characters
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, Settings
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.replay import (
    Placement,
    PlanPull,
    PlanRevision,
    ReplayFolder,
    RunRequirements,
    build_placements,
    describe_skipped_entry,
    find_layout_steps,
    parse_plan,
)
from rolloutdeck.trainer_api import TRAINERS, Trainer, load_trainer
from rolloutdeck.trainer_config import flatten_settings, parse_overrides, read_config_file, resolve_references

PROGRESS_SECONDS = 2.0  # between two progress messages of a long download


def main(args: argparse.Namespace) -> int:
    if args.trainer not in TRAINERS:
        raise UsageError(f"Unknown trainer {args.trainer!r}. Available: {', '.join(TRAINERS)}.")
    if args.steps is not None and args.steps < 1:
        raise UsageError("--steps must be at least 1.")
    settings = load_settings(args)
    server, project, name = build_server_client(settings), require_project(args, settings), args.run or settings.run
    if not name:
        raise UsageError("No run is set. Use --run NAME or set ROLLOUTDECK_RUN to the run that will replay.")
    folder, plan_name = ReplayFolder(args.into.expanduser()), args.plan or settings.plan
    run = _find_replaying_run(server, project, name)
    requirements = _read_requirements(args, _load_config(server, project, plan_name, args, run or {"name": name}))
    run = run or _create_run(server, project, name, args, settings)
    plan = _load_plan(server, run, plan_name, requirements, bind=False)
    placements = _build_placements(plan, requirements, args.steps)
    manifest = {"server": server.url, "project": project, "run": run["id"], "plan": str(plan), "trainer": args.trainer}
    manifest |= {"on_mismatch": plan.on_mismatch}
    pull = PlanPull(
        server,
        requirements,
        folder,
        _print_safe,
        lambda entry, reason: _print_safe(describe_skipped_entry(plan, entry, reason)),
        _build_progress(),
    )
    placements = pull.run(placements, manifest)
    if not placements:
        raise UsageError(f"No step of the plan {plan} can be replayed.")
    _load_plan(server, run, str(plan), requirements, bind=True)
    _print_result(run, plan, requirements, placements, pull, _build_upload_command(run, project, args.trainer))
    return 0


def _find_replaying_run(server: ServerClient, project: str, name: str) -> dict[str, Any] | None:
    """Returns the run that will replay, by its name or id; None if the server does not know it yet."""
    query = {"name": name, "project": project, "page_size": 500}
    runs = send_request(server, "GET", "runs/", query=query).json()["results"]
    uid = next((run["id"] for run in runs if run["name"] == name), name)
    try:
        return _load_run(server, uid)
    except UsageError:
        return None


def _load_run(server: ServerClient, uid: str) -> dict[str, Any]:
    return dict(send_request(server, "GET", f"runs/{quote(uid, safe='')}/").json())


def _create_run(
    server: ServerClient, project: str, name: str, args: argparse.Namespace, settings: Settings
) -> dict[str, Any]:
    """Creates the run before it starts, with the config file of the arguments, and returns it.

    The settings of --set alone are not stored: the next pull would take them for the full config.
    """
    body: dict[str, Any] = {"project": project, "name": name, "resume": "allow", "framework": args.trainer}
    body |= {"config": _read_argument_settings(args)} if args.config else {}
    body |= {"uid": settings.run_id} if settings.run_id else {}
    response = send_request(server, "POST", "runs/", body).json()
    print_message(f"Created the run {name} in {project}. The next training with this name continues it.")
    return _load_run(server, response["id"])


def _read_argument_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of --config, overridden by those of --set."""
    from_file = read_config_file(args.config)[0] if args.config else {}
    return {**from_file, **parse_overrides(args.set)}


def _load_config(
    server: ServerClient, project: str, plan: str, args: argparse.Namespace, run: dict[str, Any]
) -> dict[str, Any]:
    """Returns the run's config on the server.

    If the run has no config and --config is not used, guesses it from the run of the plan's first pin.
    """
    if run.get("config") or args.config:
        return dict(flatten_settings(run.get("config") or {}))
    name, _, revision = plan.partition("@")
    query = {"plan": name or None, "revision": revision or None}
    path = f"projects/{quote(project, safe='')}/replay-plan/"
    entries = send_request(server, "GET", path, query=query).json()["entries"]
    artifacts = [artifact for entry in entries for artifact in entry["artifacts"]]
    if not artifacts:
        return {}
    source = _load_run(server, entries[0]["source"]["run"])
    pinned = dict(flatten_settings(source.get("config") or {}))
    guess = "the settings of" if pinned else "batches like"
    _print_safe(
        f"The settings of {run['name']} are unknown. Assuming {guess} {source['name']}, with its own run name. "
        "Use --set for settings that differ, or give --config."
    )
    return load_trainer(args.trainer).guess_settings(project, run["name"], pinned, artifacts[0]["facts"])


def _read_requirements(args: argparse.Namespace, config: dict[str, Any]) -> RunRequirements:
    """Returns the run's requirements, from its config overridden by the settings of the command line."""
    trainer, overrides = load_trainer(args.trainer), _read_argument_settings(args)
    return trainer.read_requirements(resolve_references({**config, **_find_way_settings(trainer, args), **overrides}))


def _find_way_settings(trainer: Trainer, args: argparse.Namespace) -> Mapping[str, Any]:
    """Returns the settings that --way stands for. Raises UsageError if the trainer does not have it."""
    ways = trainer.ways
    if args.way and args.way not in ways:
        available = f"Available: {', '.join(ways)}" if ways else "This trainer has only one: leave out --way"
        raise UsageError(f"Unknown --way {args.way!r} for {args.trainer}. {available}.")
    return ways[args.way] if args.way else {}


def _load_plan(
    server: ServerClient, run: dict[str, Any], name: str, requirements: RunRequirements, *, bind: bool
) -> PlanRevision:
    """Returns the plan for a run with these facts; `bind` binds the run to the revision.

    Raises UsageError if the plan is empty or the run is bound to another revision.
    """
    body = {"plan": name, "facts": dict(requirements.facts), "bind": bind}
    response = send_request(server, "POST", f"runs/{quote(run['id'], safe='')}/replay-plan/", body)
    try:
        plan = parse_plan(response.json())
    except ValueError as error:
        raise UsageError(format_sentence(str(error))) from error
    if not plan.entries:
        raise UsageError(f"The plan {plan} is empty. Pin a step, then add it to the plan with a target step.")
    requested = name.partition("@")[2]
    if requested and requested != str(plan.revision):
        raise UsageError(f"The run {run['name']} is bound to {plan}. To replay {name}, use another run name.")
    return plan


def _build_placements(plan: PlanRevision, requirements: RunRequirements, max_steps: int | None) -> list[Placement]:
    """Returns where each file goes, and prints warnings and skipped steps. Raises UsageError if no step remains."""
    _print_warnings(plan)
    placements, skipped = build_placements(plan, requirements, find_layout_steps(plan, requirements, max_steps))
    for text in skipped:
        _print_safe(text)
    _print_excluded_prompts(plan)
    if not placements:
        hint = "" if skipped else " with so few steps: increase --steps"
        raise UsageError(f"No step of the plan {plan} can be replayed{hint}.")
    return placements


def _print_warnings(plan: PlanRevision) -> None:
    """Prints each warning about differences once, with all target steps that it applies to."""
    targets_by_warning: dict[str, list[int]] = {}
    for entry in plan.entries:
        if text := entry.warnings:
            targets_by_warning.setdefault(text, []).append(entry.target_step)
    for text, targets in targets_by_warning.items():
        _print_safe(f"Note, target step {format_step_ranges(targets)}: {text}.")


def _print_safe(text: str) -> None:
    """Prints a message without control characters: run names and fact values are text of other users."""
    print_message(remove_control_characters(text, lines=False))


def _print_excluded_prompts(plan: PlanRevision) -> None:
    """Prints which prompts are generated again because of a flag, where each prompt has its own files."""
    for entry in plan.entries if plan.exclude_flagged else ():
        if prompts := entry.excluded_prompts:
            excluded = f"{'prompt' if len(prompts) == 1 else 'prompts'} {format_step_ranges(prompts)}"
            _print_safe(
                f"Target step {entry.target_step} ({entry}) is replayed without {excluded}: flagged, generated again."
            )


def _build_progress() -> Any:
    """Returns a function that receives numbers of downloaded bytes and prints a message every 2 s."""
    state = {"bytes": 0, "next": time.monotonic() + PROGRESS_SECONDS}

    def progress(more: int) -> None:
        state["bytes"] += more
        if time.monotonic() >= state["next"]:
            state["next"] = time.monotonic() + PROGRESS_SECONDS
            print_message(f"{state['bytes'] / 1e6:,.0f} MB downloaded …")

    return progress


def _build_upload_command(run: dict[str, Any], project: str, trainer: str) -> str:
    """Returns the command that sends the run's data to this run: by our code in the trainer, else by `watch`."""
    if load_trainer(trainer).replay_lines:
        return f"export ROLLOUTDECK_RUN_ID={shlex.quote(run['id'])}"
    return f"rolloutdeck watch FOLDER --project {shlex.quote(project)} --run {shlex.quote(run['name'])}"


def _print_result(
    run: dict[str, Any],
    plan: PlanRevision,
    requirements: RunRequirements,
    placements: Sequence[Placement],
    pull: PlanPull,
    upload_command: str,
) -> None:
    """Prints the result to standard error, and the trainer's settings for the start to standard output."""
    numbers = [placement.number for placement in placements]
    moved = any(placement.moved for placement in placements)
    by_source: dict[str, list[int]] = {}
    for placement in placements:
        by_source.setdefault(str(placement.entry), []).append(placement.number)
    for source, steps in by_source.items():
        _print_safe(f"Step {format_step_ranges(steps)} replays {source}.")
    for text in requirements.build_notes(numbers, moved=moved):
        print_message(f"Note: {text}")
    summary = f"{format_count(len(numbers), 'step')} of plan {plan} for {run['name']}"
    _print_safe(f"{summary} in {pull.folder.path}, {pull.bytes:,} bytes downloaded.")
    if requirements.folder_settings:
        _print_safe("The trainer finds the files only with these settings: " + " ".join(requirements.folder_settings))
    print_message(f"To send the training's data to this run: {upload_command}")
    print_message("Start the training with:")
    for setting in requirements.build_settings(str(pull.folder.path), numbers):
        print(setting)
