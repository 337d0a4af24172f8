"""`rolloutdeck pull`: downloads the files of a replay plan into a folder that a trainer loads without our plug-in."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck import replay
from rolloutdeck.cli.common import (
    clean_line,
    connect,
    find_run,
    format_count,
    print_message,
    remove_control_characters,
    require_project,
    send_request,
)
from rolloutdeck.cli.plans.entries import describe_preview
from rolloutdeck.cli.plans.plan import PIN_FIRST, create_planned_run, load_plan, read_plan_response
from rolloutdeck.errors import NotReplayableError, RunNotFoundError, UsageError
from rolloutdeck.lib import ServerClient, Settings
from rolloutdeck.protocol import format_step_ranges
from rolloutdeck.replay import Placement, PlanPull, PlanRevision, RunRequirements
from rolloutdeck.trainer_api import TRAINERS, Trainer, load_trainer
from rolloutdeck.trainer_config import flatten_settings, parse_overrides, read_config_file, resolve_references

PROGRESS_SECONDS = 2.0  # between two progress messages of a long download


def main(args: argparse.Namespace) -> int:
    if args.trainer not in TRAINERS:
        raise UsageError(f"Unknown trainer {args.trainer!r}. Available: {', '.join(TRAINERS)}.")
    if args.steps is not None and args.steps < 1:
        raise UsageError("--steps must be at least 1.")
    settings, server = connect(args)
    project, name = require_project(args, settings), args.run or settings.run
    if not name:
        raise UsageError("No run is set. Use --run NAME or set ROLLOUTDECK_RUN to the run that will replay.")
    folder, plan_name = replay.ReplayFolder(args.into.expanduser()), args.plan or settings.plan
    first_plan = load_plan(server, project, plan_name)  # before a run is created
    parsed = read_plan_response(first_plan)
    _check_conflicts(parsed, skip=args.skip_conflicts)
    run = _find_replaying_run(server, project, name)
    if run is None and not parsed.entries:  # a known run may be bound to an earlier revision
        raise UsageError(f"The plan {parsed} is empty. {PIN_FIRST}")
    config, source = _load_config(server, project, first_plan, args, run or {"name": name})
    requirements = _read_requirements(args, config)
    if source:
        _print_assumptions(run or {"name": name}, requirements, source, _read_argument_settings(args))
    run = run or _create_run(server, project, name, args, settings)
    plan = _load_run_plan(server, run, plan_name, requirements, bind=False)
    placements = _build_placements(plan, requirements, args.steps)
    manifest = {"server": server.url, "project": project, "run": run["id"], "plan": str(plan), "trainer": args.trainer}
    manifest |= {"on_mismatch": plan.on_mismatch}

    def print_skipped(entry: replay.PlanEntry, reason: NotReplayableError) -> None:
        _print_safe(replay.describe_skipped_entry(plan, entry, reason))

    earlier = f" {folder.path} still has the steps of the earlier pull." if folder.folders or folder.shared else ""
    pull = PlanPull(server, requirements, folder, _print_safe, print_skipped, _build_progress())
    placements = pull.run(placements, manifest)
    if not placements:
        raise UsageError(f"No step of the plan {plan} can be replayed.{earlier}")
    requirements.check_steps([placement.number for placement in placements])  # without those that could not be placed
    _load_run_plan(server, run, str(plan), requirements, bind=True)
    previewed = read_plan_response(load_plan(server, project, str(plan), run["id"]))  # as `rolloutdeck plan` shows it
    _print_previews(previewed, placements)
    _print_result(run, plan, placements, pull, _build_upload_command(run, project, args.trainer))
    return 0


def _check_conflicts(plan: PlanRevision, *, skip: bool) -> None:
    """Raises UsageError if entries of the plan conflict with its other entries; with `skip`, prints them."""
    conflicts = [entry for entry in plan.entries if entry.conflict]
    if not conflicts:
        return
    steps = f"step{'s' if len(conflicts) > 1 else ''} {format_step_ranges([entry.target_step for entry in conflicts])}"
    lines = [f"  target step {entry.target_step} ({entry}): {entry.conflict}" for entry in conflicts]
    text = f"The plan {plan} has {format_count(len(conflicts), 'conflict')}: no run can replay all its steps."
    if skip:
        _print_safe(f"WARNING. {text} Those that do not fit the run are left out.")
        for line in lines:
            _print_safe(line)
        return
    advice = f"On the Pins page, remove target {steps} or move to a new plan."
    message = "\n".join([text, *lines, f"{advice} With --skip-conflicts, what does not fit the run is left out."])
    raise UsageError(remove_control_characters(message))


def _find_replaying_run(server: ServerClient, project: str, name: str) -> dict[str, Any] | None:
    """Returns the run that will replay, by its name or id; None if the server does not know it yet."""
    try:
        return _load_run(server, find_run(server, name, project)["id"])
    except RunNotFoundError:
        return None


def _load_run(server: ServerClient, uid: str) -> dict[str, Any]:
    return dict(send_request(server, "GET", f"runs/{quote(uid, safe='')}/").json())


def _create_run(
    server: ServerClient, project: str, name: str, args: argparse.Namespace, settings: Settings
) -> dict[str, Any]:
    """Creates the run before it starts, with the config file of the arguments, and returns it.

    The settings of --set alone are not stored: the next pull would take them for the full config.
    """
    config = {"config": _read_argument_settings(args)} if args.config else {}
    return create_planned_run(server, project, name, settings.run_id, framework=args.trainer, **config)


def _read_argument_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of --config, overridden by those of --set."""
    from_file = read_config_file(args.config)[0] if args.config else {}
    named = {name: value for name, value in from_file.items() if "(" not in name}  # not the calls of a Python file
    return {**named, **parse_overrides(args.set)}


def _load_config(
    server: ServerClient, project: str, plan: Mapping[str, Any], args: argparse.Namespace, run: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Returns the run's config on the server, and where it was taken from if it was guessed, else "".

    If the run has no config and --config is not used, guesses it from the run of the plan's first pin.
    """
    if run.get("config") or args.config:
        return dict(flatten_settings(run.get("config") or {})), ""
    entries = plan["entries"]
    artifacts = [artifact for entry in entries for artifact in entry["artifacts"]]
    if not artifacts:
        return {}, ""
    pinned_run = _load_run(server, entries[0]["source"]["run"])
    pinned = dict(flatten_settings(pinned_run.get("config") or {}))
    facts = {**artifacts[0]["facts"], "files": list(artifacts[0]["files"])}
    source = f"{'the settings of' if pinned else 'batches like'} {pinned_run['name']}"
    return load_trainer(args.trainer).guess_settings(project, run["name"], pinned, facts), source


def _print_assumptions(
    run: Mapping[str, Any], requirements: RunRequirements, source: str, given: Mapping[str, Any]
) -> None:
    """Prints what was guessed for a run without known settings, and how to correct it."""
    _print_safe(f"The settings of {run['name']} are unknown. Assuming {source}:")
    lines = [line for line in requirements.folder_settings if _parse_setting_name(line) not in given]
    lines += [f"{name}: {value}" for name, value in requirements.describe_assumptions(given).items()]
    for line in lines:
        _print_safe(f"  {line}")
    _print_safe("Use --set for settings that differ, or give --config.")


def _parse_setting_name(line: str) -> str:
    """Returns the name in a printed setting, `name=value`, which may be quoted for a shell."""
    return line.lstrip("'\"").partition("=")[0]


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


def _load_run_plan(
    server: ServerClient, run: dict[str, Any], name: str, requirements: RunRequirements, *, bind: bool
) -> PlanRevision:
    """Returns the plan for a run with these facts; `bind` binds the run to the revision.

    Raises UsageError if the plan is empty or the run is bound to another revision.
    """
    body = {"plan": name, "facts": dict(requirements.facts), "bind": bind}
    response = send_request(server, "POST", f"runs/{quote(run['id'], safe='')}/replay-plan/", body)
    plan = read_plan_response(response.json())
    if not plan.entries:
        raise UsageError(f"The plan {plan} is empty. {PIN_FIRST}")
    requested = name.partition("@")[2]
    if requested and requested != str(plan.revision):
        raise UsageError(f"The run {run['name']} is bound to {plan}. To replay {name}, use another run name.")
    return plan


def _build_placements(plan: PlanRevision, requirements: RunRequirements, max_steps: int | None) -> list[Placement]:
    """Returns where each file goes, and prints warnings and skipped steps. Raises UsageError if no step remains."""
    _print_warnings(plan)
    steps = replay.find_layout_steps(plan, requirements, max_steps)
    placements, skipped = replay.build_placements(plan, requirements, steps)
    for text in skipped:
        _print_safe(text)
    _print_excluded_prompts(plan)
    if not placements:
        hint = "" if skipped else " with so few steps: increase --steps"
        raise UsageError(f"No step of the plan {plan} can be replayed{hint}.")
    requirements.check_steps([placement.number for placement in placements])
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
    print_message(clean_line(text))


def _print_excluded_prompts(plan: PlanRevision) -> None:
    """Prints which prompts are generated again because of selected samples, where each prompt has its own files."""
    for entry in plan.entries if plan.changes_selected else ():
        if prompts := entry.excluded_prompts:
            excluded = f"{'prompt' if len(prompts) == 1 else 'prompts'} {format_step_ranges(prompts)}"
            replayed = f"Target step {entry.target_step} ({entry}) is replayed without {excluded}"
            _print_safe(f"{replayed}: {entry.selected_word}, generated again.")


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


def _print_previews(plan: PlanRevision, placements: Sequence[Placement]) -> None:
    """Prints what is expected at the steps whose files are in the folder, in the words of `rolloutdeck plan`."""
    entries = {entry.target_step: entry for entry in plan.entries}
    steps_by_text: dict[str, list[int]] = {}
    for placement in placements:
        label, reason = describe_preview(entries.get(placement.entry.target_step, placement.entry), has_run=True)
        text = f"{placement.entry}, {label}{f' ({reason})' if reason else ''}"
        steps_by_text.setdefault(text, []).append(placement.number)
    for text, steps in steps_by_text.items():
        _print_safe(f"Step {format_step_ranges(steps)}: {text}.")


def _print_result(
    run: dict[str, Any], plan: PlanRevision, placements: Sequence[Placement], pull: PlanPull, upload_command: str
) -> None:
    """Prints the result to standard error, and the trainer's settings for the start to standard output."""
    requirements, numbers = pull.requirements, [placement.number for placement in placements]
    moved = any(placement.moved for placement in placements)
    for text in requirements.build_notes(numbers, moved=moved):
        print_message(f"Note: {text}")
    summary = f"{format_count(len(numbers), 'step')} of plan {plan} for {run['name']}"
    _print_safe(f"{summary} in {pull.folder.path}, {pull.bytes:,} bytes downloaded.")
    print_message(f"To send the training's data to this run: {upload_command}")
    print_message("Start the training with:")
    # The trainer looks for the files in a folder that some of its other settings name.
    for setting in (*requirements.folder_settings, *requirements.build_settings(str(pull.folder.path), numbers)):
        print(clean_line(setting))
