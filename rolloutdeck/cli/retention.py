"""`rolloutdeck retention PROJECT`: shows what the project's retention policy would drop, and drops it on request."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import clean_line, connect, format_count, print_message, send_request
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, format_bytes

POLL_SECONDS = 2.0
MAX_WAIT_SECONDS = 3600.0
MAX_RUNS = 50


def main(args: argparse.Namespace) -> int:
    _, server = connect(args)
    path = f"projects/{quote(args.project, safe='')}/retention/"
    response: dict[str, Any] = send_request(server, "POST", path, {"apply": args.apply}).json()
    drops = response["report"]["totals"]["drops"]
    if args.apply and (drops or response["report"]["raw"]["dumps"]):
        print_message(f"Dropping {format_count(drops, 'sample')}. Ctrl-C only ends this command, not the pass.")
        response |= wait_for_pass(server, path)
    if args.json:
        print(json.dumps(response, ensure_ascii=False))
    else:
        print_report(response, is_applied=args.apply)
    return 0


def wait_for_pass(server: ServerClient, path: str) -> dict[str, Any]:
    """Waits until a worker has ended the pass. Returns the present state. Raises UsageError after an hour."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < end:
        state: dict[str, Any] = send_request(server, "GET", path).json()
        if state["finished_at"]:
            return state
        time.sleep(POLL_SECONDS)
    raise UsageError("The pass has not ended within an hour. It continues in the background.")


def print_report(response: Mapping[str, Any], *, is_applied: bool) -> None:
    report = response["report"]
    totals, raw = report["totals"], report["raw"]
    for sentence in response["description"]:
        print(clean_line(sentence))
    verb = "Dropped" if is_applied else "Would drop"
    size = format_bytes(sum(totals["bytes"].values()) + raw["bytes"])
    parts = [f"{format_count(totals['drops'], 'sample')} of {format_count(totals['steps'], 'step')}"]
    if raw["dumps"]:
        parts.append(f"the raw bytes of {format_count(raw['dumps'], 'other dump')}")
    print(f"{verb} {' and '.join(parts)}, about {size}.")
    print_runs([row for row in report["runs"] if row["drops"]])
    print_reasons("Kept samples", totals["kept"])
    print_reasons("Kept raw dumps", raw["kept"])
    dropped = response["dropped"]
    if dropped["samples"] or dropped["raw_dumps"]:
        counts = f"{format_count(dropped['samples'], 'sample')} and {format_count(dropped['raw_dumps'], 'raw dump')}"
        print(f"Dropped so far: {counts}, about {format_bytes(dropped['bytes'])}.")
    if quota := response["quota"]:
        print(f"Quota: {format_bytes(quota['used'])} of {format_bytes(quota['bytes'])} ({quota['percent']} %).")


def print_runs(rows: list[Mapping[str, Any]]) -> None:
    """Prints a line for each run that loses samples."""
    if not rows:
        return
    table = [("run", "steps", "samples", "of", "bytes")]
    for row in sorted(rows, key=lambda row: -sum(row["bytes"].values()))[:MAX_RUNS]:
        counts = (f"{len(row['steps']):,}", f"{row['drops']:,}", f"{row['samples']:,}")
        table.append((clean_line(row["name"]), *counts, format_bytes(sum(row["bytes"].values()))))
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for name, *numbers in table:
        cells = (f"{number:>{width}}" for number, width in zip(numbers, widths[1:], strict=True))
        print(f"  {name:<{widths[0]}}  {'  '.join(cells)}")
    if len(rows) > MAX_RUNS:
        print(f"  and {format_count(len(rows) - MAX_RUNS, 'more run')}; use --json for all")


def print_reasons(title: str, reasons: Mapping[str, int]) -> None:
    if reasons:
        print(f"{title}: {', '.join(f'{reason} {count:,}' for reason, count in reasons.items())}")
