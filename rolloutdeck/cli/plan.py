"""`rolloutdeck plan`: what the next run replays, step by step, and whether it fits a run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import asked, project_named, say, server_of, settings_of
from rolloutdeck.cli.samples import printable, run_of
from rolloutdeck.client.replay_plan import DEFAULT
from rolloutdeck.errors import BadInput, NoSuchRun
from rolloutdeck.lib.http import Server
from rolloutdeck.protocol.compatibility import is_untold
from rolloutdeck.protocol.schedule import ranges, strip
from rolloutdeck.trainer_api import registry

MOST_STEPS = 10_000
BEYOND = 4  # steps shown after the last target, so that what comes then is seen
VERDICTS = {True: "refused", False: "replayed"}
Row = Mapping[str, Any]


def main(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    server, project = server_of(settings), project_named(args, settings)
    if not 0 <= args.steps <= MOST_STEPS:
        raise BadInput(f"--steps must be 1 to {MOST_STEPS:,}.")
    name, _, revision = (args.plan or settings.plan or DEFAULT).partition("@")
    asking = args.run or settings.run
    run = _known(server, asking, project) if asking else None
    told = _told(server, project, {"plan": name, "revision": revision or None, "run": run["id"] if run else None})
    if args.json:
        print(json.dumps(told, ensure_ascii=False))
        return 0
    _print(told, run, args.steps)
    if told["entries"] and not asking:
        say("Say --run NAME to see whether it fits that run.")
    return 1 if any(_refused(entry) for entry in told["entries"]) else 0


def _known(server: Server, name: str, project: str) -> dict[str, Any] | None:
    """The run that will replay; None, which is said, where it has not begun."""
    try:
        return run_of(server, name, project)
    except NoSuchRun as unknown:
        say(f"{unknown} Until it has begun, or `rolloutdeck pull` has been there, the plan is compared with nothing.")
        return None


def _told(server: Server, project: str, query: Mapping[str, Any]) -> dict[str, Any]:
    return dict(asked(server, "GET", f"projects/{quote(project, safe='')}/replay-plan/", query=query).json())


def _print(told: Row, run: Row | None, steps: int) -> None:
    entries = told["entries"]
    number = told["revision"]
    if not entries:
        print(f"Plan {told['plan']} replays nothing.")
        say("Pin a step on its page, give it a target step in the plan, and look again.")
        return
    also = ", nothing that is flagged" if told.get("exclude_flagged") else ""
    mismatch = "generate" if told["on_mismatch"] == "generate" else "stop"
    print(f"Plan {told['plan']}@{number}: {told['action']}, {mismatch} where a pin does not fit{also}.")
    _print_entries(entries, judged=run is not None)
    _print_strip(told["action"], entries, steps)
    _print_differences([(entry["target_step"], one) for entry in entries for one in entry.get("differences") or ()])


def _print_differences(found: Sequence[tuple[Any, Row]]) -> None:
    """By target step; facts that neither side tells in one line."""
    for target, told in found:
        if not _untold(told):
            print(f"  step {target}: {_difference(told)}")
    if untold := dict.fromkeys(str(told["fact"]) for _, told in found if _untold(told)):
        print(f"  not compared, since neither side tells it: {printable(', '.join(untold), lines=False)}")


def _print_entries(entries: Sequence[Row], *, judged: bool) -> None:
    rows = [("step", "pin", "replays", "bytes", *(["verdict"] if judged else []))]
    for entry in entries:
        source = entry.get("source") or {}
        place = f"step {source.get('step')} of {printable(str(source.get('name', '')), lines=False)}"
        state = _state([str(one.get("state") or "") for one in entry.get("artifacts") or ()])
        verdict = [VERDICTS[_refused(entry)]] if judged else []
        rows.append((str(entry["target_step"]), str(entry["pin"]), place, state, *verdict))
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in used}
    for row in rows:
        print("  ".join(f"{row[at]:<{widths[at]}}" for at in used).rstrip())


def _print_strip(action: str, entries: Sequence[Row], steps: int) -> None:
    """Which steps each pin is replayed at, and which generate."""
    targets, first = [int(entry["target_step"]) for entry in entries], _first(entries)
    last = first + steps - 1 if steps else max(targets) + BEYOND
    cells = strip(action, targets, range(first, min(last, MOST_STEPS) + 1))
    replayed: dict[int, list[int]] = {}
    for step, target in cells:
        if target is not None:
            replayed.setdefault(target, []).append(step)
    for target, at in sorted(replayed.items()):
        print(f"{_steps(at)} replay{'s' if len(at) == 1 else ''} the pin of {target}")
    if generated := [step for step, target in cells if target is None]:
        print(f"{_steps(generated)} generate{'s' if len(generated) == 1 else ''}")


def _first(entries: Sequence[Row]) -> int:
    """The number of a run's first step, as the trainer counts that would load these pins."""
    formats = [str(one["facts"].get("format")) for entry in entries for one in entry["artifacts"]]
    return min(map(registry.first_step, formats), default=1)


def _steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {ranges(steps)}"


def _state(states: Sequence[str]) -> str:
    """That of the artifact that is furthest from being ready; `none` of a pin that has none."""
    return next((state for state in ("unsafe", "gone", "waiting", "uploading", "ready") if state in states), "none")


def _refused(entry: Row) -> bool:
    return any(one.get("verdict") == "refuse" for one in entry.get("differences") or ())


def _untold(told: Row) -> bool:
    return is_untold(str(told.get("fact")), told.get("pinned"), told.get("asking"))


def _difference(told: Row) -> str:
    pinned, asking = (json.dumps(told.get(side), ensure_ascii=False) for side in ("pinned", "asking"))
    known = [value if value != "null" else "unknown" for value in (pinned, asking)]
    loosened = ", loosened by the project" if told.get("loosened") else ""
    return printable(
        f"{told['verdict']}: {told['fact']} is {known[0]} in the pin, {known[1]} here{loosened}", lines=False
    )
