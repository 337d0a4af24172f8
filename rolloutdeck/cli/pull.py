"""`rolloutdeck pull`: the files of a replay plan, where a trainer without our plug-in loads them."""

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
from rolloutdeck.lib import ServerClient, ServerUnreachableError, Settings
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

TELL_SECONDS = 2.0  # between two words on a long download


def main(args: argparse.Namespace) -> int:
    if args.trainer not in TRAINERS:
        raise UsageError(f"pull knows no trainer {args.trainer!r}; it knows {', '.join(TRAINERS)}.")
    if args.steps is not None and args.steps < 1:
        raise UsageError("--steps needs a number of at least 1.")
    settings = load_settings(args)
    server, project, name = build_server_client(settings), require_project(args, settings), args.run or settings.run
    if not name:
        raise UsageError("Which run will replay? Say --run NAME or set ROLLOUTDECK_RUN.")
    folder, wanted = ReplayFolder(args.into.expanduser()), args.plan or settings.plan
    run = _known(server, project, name)
    asking = _asking(args, _config(server, project, wanted, args, run or {"name": name}))
    run = run or _opened(server, project, name, args, settings)
    plan = _plan(server, run, wanted, asking, bind=False)
    placements = _placements(plan, asking, args.steps)
    about = {"server": server.url, "project": project, "run": run["id"], "plan": str(plan), "trainer": args.trainer}
    about |= {"on_mismatch": plan.on_mismatch}
    pull = PlanPull(
        server, asking, folder, _tell, lambda entry, why: _tell(describe_skipped_entry(plan, entry, why)), _told()
    )
    placements = pull.run(placements, about)
    if not placements:
        raise UsageError(f"Nothing of the plan {plan} can be replayed.")
    _plan(server, run, str(plan), asking, bind=True)
    _report(run, plan, asking, placements, pull, _joining(run, project, args.trainer))
    return 0


def _known(server: ServerClient, project: str, name: str) -> dict[str, Any] | None:
    """The run that will replay, by its name or id; None where the server does not know it yet."""
    query = {"name": name, "project": project, "page_size": 500}
    named = send_request(server, "GET", "runs/", query=query).json()["results"]
    found = next((run["id"] for run in named if run["name"] == name), name)
    try:
        return _whole(server, found)
    except UsageError:
        return None


def _whole(server: ServerClient, uid: str) -> dict[str, Any]:
    return dict(send_request(server, "GET", f"runs/{quote(uid, safe='')}/").json())


def _opened(
    server: ServerClient, project: str, name: str, args: argparse.Namespace, settings: Settings
) -> dict[str, Any]:
    """A run that has not begun: what it will be started with is in the arguments only. Single settings are not told:
    the next pull would take them for the whole config."""
    told: dict[str, Any] = {"project": project, "name": name, "resume": "allow", "framework": args.trainer}
    told |= {"config": _given(args)} if args.config else {}
    told |= {"uid": settings.run_id} if settings.run_id else {}
    answer = _sent(server, "runs/", told)
    print_message(f"{name} is new in {project}; it stands in the list of runs, and the next launch of this name is it.")
    return _whole(server, answer["id"])


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the command line: those of --config with those of --set on top."""
    found = read_config_file(args.config)[0] if args.config else {}
    return {**found, **parse_overrides(args.set)}


def _config(
    server: ServerClient, project: str, plan: str, args: argparse.Namespace, run: dict[str, Any]
) -> dict[str, Any]:
    """The run's config on the server; where it has none and none is given, that of the run whose step is pinned."""
    if run.get("config") or args.config:
        return dict(flatten_settings(run.get("config") or {}))
    name, _, revision = plan.partition("@")
    query = {"plan": name or None, "revision": revision or None}
    path = f"projects/{quote(project, safe='')}/replay-plan/"
    entries = send_request(server, "GET", path, query=query).json()["entries"]
    artifacts = [one for entry in entries for one in entry["artifacts"]]
    if not artifacts:
        return {}
    source = _whole(server, entries[0]["source"]["run"])
    pinned = dict(flatten_settings(source.get("config") or {}))
    taken = "has the settings of" if pinned else "has batches like"
    known = f"Nothing is known of the settings of {run['name']}: it is taken that it {taken} {source['name']}"
    _tell(f"{known}, under its own name. Say --set where it differs, or give its --config.")
    return load_trainer(args.trainer).guess_settings(project, run["name"], pinned, artifacts[0]["facts"])


def _asking(args: argparse.Namespace, config: dict[str, Any]) -> RunRequirements:
    """What the run asks for: its config, the command line's settings on top."""
    trainer, given = load_trainer(args.trainer), _given(args)
    return trainer.read_requirements(resolve_references({**config, **_way(trainer, args), **given}))


def _way(trainer: Trainer, args: argparse.Namespace) -> Mapping[str, Any]:
    """The settings that --way stands for. Raises UsageError."""
    ways = trainer.ways
    if args.way and args.way not in ways:
        known = f"ways {', '.join(ways)}" if ways else "one way"
        raise UsageError(f"pull knows no way {args.way!r} for {args.trainer}; it has the {known}.")
    return ways[args.way] if args.way else {}


def _plan(server: ServerClient, run: dict[str, Any], name: str, asking: RunRequirements, *, bind: bool) -> PlanRevision:
    body = {"plan": name, "facts": dict(asking.facts), "bind": bind}
    answer = _sent(server, f"runs/{quote(run['id'], safe='')}/replay-plan/", body)
    try:
        plan = parse_plan(answer)
    except ValueError as error:
        raise UsageError(format_sentence(str(error))) from error
    if not plan.entries:
        raise UsageError(f"The plan {plan} is empty: pin a step and add it to the plan at the step that replays it.")
    wanted = name.partition("@")[2]
    if wanted and wanted != str(plan.revision):
        raise UsageError(f"The run {run['name']} is bound to {plan}; give the run that replays {name} another name.")
    return plan


def _sent(server: ServerClient, path: str, body: dict[str, Any]) -> Any:
    try:
        answer = server.send_json("POST", path, body)
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error
    if not answer.is_success:
        raise UsageError(format_sentence(answer.error_message))
    return answer.json()


def _placements(plan: PlanRevision, asking: RunRequirements, most: int | None) -> list[Placement]:
    """What is laid out, after saying what differs and what is left out. Raises UsageError where nothing is left."""
    _warn(plan)
    placements, left_out = build_placements(plan, asking, find_layout_steps(plan, asking, most))
    for text in left_out:
        _tell(text)
    _tell_left_out(plan)
    if not placements:
        raise UsageError(f"Nothing of the plan {plan} can be replayed{'' if left_out else ' in so few steps'}.")
    return placements


def _warn(plan: PlanRevision) -> None:
    """What differs from the pins without being refused, once for all targets that it holds for."""
    told: dict[str, list[int]] = {}
    for entry in plan.entries:
        if text := entry.warnings:
            told.setdefault(text, []).append(entry.target_step)
    for text, targets in told.items():
        _tell(f"Note, target step {format_step_ranges(targets)}: {text}.")


def _tell(text: str) -> None:
    """To the person; names of runs and values of facts are somebody else's text."""
    print_message(remove_control_characters(text, lines=False))


def _tell_left_out(plan: PlanRevision) -> None:
    """Where each prompt has its own files, which of them a flag leaves out: the run generates them."""
    for entry in plan.entries if plan.exclude_flagged else ():
        if prompts := entry.excluded_prompts:
            what = f"{'prompt' if len(prompts) == 1 else 'prompts'} {format_step_ranges(prompts)}"
            _tell(f"Target step {entry.target_step} ({entry}) is replayed without {what}: flagged, generated again.")


def _told() -> Any:
    """Tells of a long download now and then."""
    state = {"bytes": 0, "at": time.monotonic() + TELL_SECONDS}

    def progress(more: int) -> None:
        state["bytes"] += more
        if time.monotonic() >= state["at"]:
            state["at"] = time.monotonic() + TELL_SECONDS
            print_message(f"{state['bytes'] / 1e6:,.0f} MB fetched …")

    return progress


def _joining(run: dict[str, Any], project: str, trainer: str) -> str:
    """How data comes to the run: from inside its trainer, else by somebody who watches what it writes."""
    if load_trainer(trainer).replay_lines:
        return f"export ROLLOUTDECK_RUN_ID={shlex.quote(run['id'])}"
    return f"rolloutdeck watch FOLDER --project {shlex.quote(project)} --run {shlex.quote(run['name'])}"


def _report(
    run: dict[str, Any],
    plan: PlanRevision,
    asking: RunRequirements,
    placements: Sequence[Placement],
    pull: PlanPull,
    joining: str,
) -> None:
    """What was done, to the person; the overrides to start with, to standard output."""
    numbers = [placement.number for placement in placements]
    moved = any(placement.moved for placement in placements)
    by_source: dict[str, list[int]] = {}
    for placement in placements:
        by_source.setdefault(str(placement.entry), []).append(placement.number)
    for source, own in by_source.items():
        _tell(f"Step {format_step_ranges(own)} replays {source}.")
    for text in asking.notes(numbers, moved=moved):
        print_message(f"Note: {text}")
    what = f"{format_count(len(numbers), 'step')} of plan {plan} for {run['name']}"
    _tell(f"{what} in {pull.folder.path}, {pull.bytes:,} bytes fetched.")
    if asking.named_by:
        _tell("They are found only by a run with these settings: " + " ".join(asking.named_by))
    print_message(f"So that its data joins this run: {joining}")
    print_message("Start it with:")
    for flag in asking.flags(str(pull.folder.path), numbers):
        print(flag)
