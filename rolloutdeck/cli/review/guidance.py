"""`rolloutdeck guidance`: shows the rules by which labels act on trainings, what they select, and their history; saves
the next version."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import clean_line, connect, format_count, print_message, require_project, send_request
from rolloutdeck.cli.review.labels import read_json_object
from rolloutdeck.lib import ServerClient

SELECTION_SECONDS = 60.0  # the server searches texts for 15 s
EXPECTED = "baseline and rules, as `guidance show` prints them"


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    path = f"projects/{quote(require_project(args, settings), safe='')}/guidance/"
    match args.verb:
        case "set":
            save_rules(server, path, args)
        case "history":
            list_versions(server, path, as_json=args.json)
        case _ if args.selection:
            show_selection(server, path)
        case _:
            rules = send_request(server, "GET", path, query={"version": args.version}).json()
            shown = {name: rules[name] for name in ("version", "baseline", "rules")}
            print(json.dumps(shown, ensure_ascii=False, indent=2))
    return 0


def save_rules(server: ServerClient, path: str, args: argparse.Namespace) -> None:
    given = read_json_object(args.file, EXPECTED)
    base = given.get("version")
    if base is None:
        base = send_request(server, "GET", path).json()["version"]
    body = {"rules": given.get("rules"), "baseline": given.get("baseline"), "base_version": base}
    saved = send_request(server, "PUT", path, body).json()
    print_message(f"Version {saved['version']} has {format_count(len(saved['rules']), 'rule')}.")


def list_versions(server: ServerClient, path: str, *, as_json: bool) -> None:
    versions = send_request(server, "GET", path).json()["versions"]
    for row in versions:
        text = f"{row['version']:>4}  {row['created_at'][:16].replace('T', ' ')}  {clean_line(row['created_by'])}"
        print(json.dumps(row, ensure_ascii=False) if as_json else text.rstrip())
    if not versions:
        print_message("The project has no rules. Save some: rolloutdeck guidance set FILE")


def show_selection(server: ServerClient, path: str) -> None:
    selection = send_request(server, "GET", f"{path}selection/", timeout=SELECTION_SECONDS).json()
    print_message(f"Version {selection['version']}, masked samples in the baseline: {selection['baseline']}")
    for rule in selection["rules"]:
        print(format_rule(rule))


def format_rule(rule: Mapping[str, Any]) -> str:
    """Returns `bad: mask, 3 prompts of 5 samples`, with what is missing."""
    action = rule["action"] if rule["action"] in ("mask", "drop") else f"{rule['action']} {rule['value']:g}"
    text = f"{rule['key']}: {action}, {format_count(rule['selected'], rule['target'])}"
    text += f" of {format_count(rule['samples'], 'sample')}"
    if rule["sent"] != rule["selected"]:
        text += f", {rule['sent']:,} sent"
    if not rule["complete"]:
        text += ", more may match"
    return f"{text}. {clean_line(rule['problem'])}" if rule["problem"] else text
