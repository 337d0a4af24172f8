"""`rolloutdeck queues`: lists review queues, creates, shows and closes them, prints answers and agreement."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.cli.common import (
    clean_line,
    connect,
    find_run,
    format_count,
    iterate_pages,
    print_message,
    require_project,
    send_request,
)
from rolloutdeck.cli.review.estimates import format_estimate
from rolloutdeck.errors import MissingError, UsageError
from rolloutdeck.lib import ServerClient


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    project = args.project or settings.project
    match args.verb:
        case "create":
            return create_queue(server, args, require_project(args, settings), args.run or [settings.run])
        case "show":
            print_queue(find_queue(server, args.queue, project), as_json=args.json)
        case "answers":
            for item in iterate_pages(server, f"queues/{find_queue(server, args.queue, project)['id']}/items/"):
                print(json.dumps(item, ensure_ascii=False))
        case "agreement":
            queue = find_queue(server, args.queue, project)
            print_agreement(send_request(server, "GET", f"queues/{queue['id']}/agreement/").json(), as_json=args.json)
        case "close" | "reopen":
            queue = find_queue(server, args.queue, project)
            send_request(server, "PATCH", f"queues/{queue['id']}/", {"closed": args.verb == "close"})
            print_message(f"{'Closed' if args.verb == 'close' else 'Opened'} the queue {queue['name']}.")
        case _:
            query = {"state": args.state, "project": project or None}
            list_queues(server, query, as_json=args.json)
    return 0


def list_queues(server: ServerClient, query: Mapping[str, Any], *, as_json: bool) -> None:
    queues = list(iterate_pages(server, "queues/", query))
    for queue in queues:
        print(json.dumps(queue, ensure_ascii=False) if as_json else format_queue(queue))
    if not queues:
        print_message("No queue. Create one: rolloutdeck queues create NAME --run RUN --q QUERY")


def create_queue(server: ServerClient, args: argparse.Namespace, project: str, names: Sequence[str]) -> int:
    if not all(names):
        raise UsageError("No run is set. Use --run NAME or set ROLLOUTDECK_RUN.")
    runs = [find_run(server, name, project)["id"] for name in names]
    chosen = {
        "q": args.q, "unit": args.unit, "pairs_per_group": args.pairs, "selection": args.selection, "per": args.per,
        "count": args.count, "seed": args.seed, "grows": args.grows, "questions": args.question,
        "num_reviewers_per_item": args.reviewers, "reservation_minutes": args.minutes, "reviewers": args.person,
        "roles": args.role, "due_at": args.due, "is_blind": args.blind, "gold_count": args.gold,
        "dry_run": args.dry_run,
    }  # fmt: skip
    body = {name: value for name, value in chosen.items() if is_given(value)}
    response = send_request(server, "POST", "queues/", {"project": project, "name": args.name, "runs": runs, **body})
    result: dict[str, Any] = response.json()
    if args.dry_run and not args.json:
        print(f"Would draw {format_count(result['items'], 'item')} of {result['matched']:,} that match.")
        for part in result["strata"][:50]:
            print(f"  {clean_line(part['stratum'] or 'all')}: {part['drawn']:,} of {part['matched']:,}")
        return 0
    print_queue(result, as_json=args.json)
    if not args.json:
        print(f"Review it at {server.url}/queues/{result['id']}/review/")
    return 0


def is_given(value: Any) -> bool:
    """Whether the user gave the option, also with the number 0."""
    return value is not None and value is not False and value not in ("", [])


def find_queue(server: ServerClient, name: str, project: str = "") -> dict[str, Any]:
    """Returns the queue with this id, or with this name in the project (default: all). Raises UsageError if there is
    none, and if one queue has the id and another one the name."""
    query = {"state": "all", "project": project or None}
    try:
        found = [queue["id"] for queue in iterate_pages(server, "queues/", query) if queue["name"] == name]
    except MissingError:  # of the project
        if not name.isdecimal():
            raise
        found = []
    if name.isdecimal() and found in ([], [int(name)]):
        return dict(send_request(server, "GET", f"queues/{name}/").json())
    if name.isdecimal():
        has_id = any(queue["id"] == int(name) for queue in iterate_pages(server, "queues/", {"state": "all"}))
        found += [int(name)] if has_id else []
    if len(found) != 1:
        place = f" in {project}" if project else ""
        problem = f"There is no queue {name!r}{place}"
        if found:
            problem = f"Several queues have the name or the id {name!r}{place}"
        raise UsageError(f"{problem}. List them with `rolloutdeck queues list --state all`, and use the id.")
    return dict(send_request(server, "GET", f"queues/{found[0]}/").json())


def print_queue(queue: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(queue, ensure_ascii=False))
        return
    print(format_queue(queue))
    for person in queue.get("people", ()):
        pace = "no pace yet" if person["pace"] is None else f"{person['pace']:.0f} s per item"
        print(f"  {clean_line(person['user'])}: {format_count(person['done'], 'answer')}, {pace}")


def format_queue(queue: Mapping[str, Any]) -> str:
    parts = [
        f"{queue['id']:>5}  {clean_line(queue['name'])}",
        f"{queue['answers_done']:,} of {format_count(queue['answers'], 'answer')}",
        f"{queue['items_complete']:,} of {format_count(queue['items'], 'item')} complete",
    ]
    if queue["due_at"]:
        parts.append(f"due {queue['due_at'][:16].replace('T', ' ')}")
    parts += [word for word, is_set in (("blind", queue["is_blind"]), ("closed", queue["closed_at"])) if is_set]
    return ", ".join(parts)


def print_agreement(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    print(f"{found['items_shared']:,} of {format_count(found['items'], 'item')} have answers of two people.")
    if orders := found.get("orders"):
        print(f"same answer about two responses {format_estimate(orders['percent'])}")
        print(f"Kendall's tau-b {format_estimate(orders['tau'])}")
        for pair in orders["pairs"]:
            people = " and ".join(map(clean_line, pair["people"]))
            print(f"    {people}: tau-b {format_estimate(pair['tau'])}, {format_count(pair['items'], 'item')}")
        return
    for row in found["questions"]:
        name = f"  {row['option']}" if row["option"] else row["question"]
        same = "-" if row["percent"]["value"] is None else f"{row['percent']['value']:.0%}"
        items, alpha = format_count(row["items"], "item"), format_estimate(row["alpha"])
        print(f"{clean_line(name)}: {items}, same {same}, alpha {alpha}")
        for pair in () if row["option"] else row["pairs"]:
            people = " and ".join(map(clean_line, pair["people"]))
            print(f"    {people}: kappa {format_estimate(pair['kappa'])}, {format_count(pair['items'], 'item')}")
        for person in row["gold"]:
            user, share = clean_line(person["user"]), format_estimate(person["share"])
            print(f"    {user}: {person['correct']} of {person['judged']} known items right, {share}")
    open_items = sum(not row["decided"] for row in found["differing"])
    print(f"{format_count(len(found['differing']), 'item')} with different answers, {open_items:,} to decide")
