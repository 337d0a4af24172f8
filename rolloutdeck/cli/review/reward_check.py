"""`rolloutdeck labels reward-check`: what people say compared with the score, and what changed between two runs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rolloutdeck.cli.common import clean_line, connect, find_run, format_count, print_message, send_request
from rolloutdeck.cli.review.estimates import format_change, format_estimate
from rolloutdeck.lib import ServerClient

CELLS = {
    "rewarded": ("rewarded_good", "rewarded_bad"),
    "not rewarded": ("unrewarded_good", "unrewarded_bad"),
}
RATES = {"precision": "right, of the rewarded", "recall": "rewarded, of the right"}
CHANGES = {
    "wrong_of_rewarded": "wrong, of the rewarded",
    "unrewarded_of_good": "not rewarded, of the right",
    "good": "right according to people",
    "rewarded": "rewarded",
    "mean_score": "score, mean",
}


def check_reward(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    project = args.project or settings.project
    run = find_run(server, args.run or settings.run, project)
    query = {name: getattr(args, name) or None for name in ("question", "good", "threshold", "steps", "than")}
    if args.against:
        query["against"] = find_run(server, args.against, project)["id"]
    found = load_check(server, run["id"], query)
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    print_check(found, is_threshold_chosen=not args.threshold)
    if sides := found.get("sides"):  # an older server does not name them
        print("\nFrom " + " to ".join(map(format_side, sides)) + ":")
    for name, title in CHANGES.items() if "changes" in found else ():
        print_change(title, found["changes"][name])
    for rate in found.get("rates", ()):
        print_change(" ".join(filter(None, (rate["title"], rate["answer"]))), rate)
    listed = (("suspected reward hack", "suspected_hacks"), ("missed good answer", "missed_good"))
    counts = [format_count(len(found[name]), noun) for noun, name in listed]
    print_message(f"{' and '.join(counts)} in {run['project']}/{run['name']}; --json has their ids")
    return 0


def load_check(server: ServerClient, run: str, query: Mapping[str, str | None]) -> dict[str, Any]:
    response: dict[str, Any] = send_request(server, "GET", f"runs/{run}/reward-check/", query=dict(query)).json()
    return response


def format_side(side: Mapping[str, str]) -> str:
    return f"{clean_line(side['name'])} ({'steps ' + side['found'] if side['found'] else 'no steps'})"


def print_check(found: Mapping[str, Any], *, is_threshold_chosen: bool) -> None:
    good = ", ".join(map(clean_line, found["good_answers"]))
    labelled = format_count(found["labelled"], "labelled sample")
    print(f"{clean_line(found['question'])} = {good}, score >= {found['threshold']!r}: {labelled} drawn at random,")
    print(f"weighted to about {found['population']:,.0f}; {found['hand_picked']:,} more chosen by hand")
    if is_threshold_chosen and found["best_threshold"] is not None:
        print("This threshold fits the labels best; --threshold sets another.")
    if outdated := found.get("outdated_answers"):  # an older server does not say it
        print(f"{format_count(outdated, 'answer')} left out: not possible in the question as it is now")
    if undecided := found.get("undecided_samples"):
        print(f"{format_count(undecided, 'sample')} left out: people disagree, and nobody has decided")
    print(f"{'':<14}{'people: right':>22}{'people: wrong':>22}")
    for row, names in CELLS.items():
        print(f"{row:<14}" + "".join(f"{format_cell(found[name]):>22}" for name in names))
    for name, meaning in RATES.items():
        print(f"{name} ({meaning}): {format_estimate(found[name])}")


def format_cell(cell: Mapping[str, Any]) -> str:
    """Returns `0.58, 71 labelled`."""
    share = cell["share"]["value"]
    return ("" if share is None else f"{share:.2f}, ") + f"{cell['labelled']:,} labelled"


def print_change(title: str, change: Mapping[str, Any]) -> None:
    print(f"{clean_line(title)}: {format_change(change, is_clear=change['is_clear'])}")
