"""`rolloutdeck samples`: runs a query of the sample pages from a shell."""

from __future__ import annotations

import argparse
import json
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rolloutdeck.cli.common import clean_line, connect, find_run, print_message, remove_control_characters, send_request
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient

PAGE_SIZE = 500
DEFAULT_COUNT = 5
MAX_RUN_CHARS = 32  # of a run's name in a table
COLUMNS = ("run", "step", "score", "group", "n", "length", "id")
NO_TEXT_MESSAGE = "(only token ids were recorded; `rolloutdeck import --tokenizer PATH` adds the text)"
JsonObject = Mapping[str, Any]


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    count = args.best if args.best is not None else DEFAULT_COUNT if args.worst is None else args.worst
    if count < 1:
        raise UsageError("--worst and --best must be at least 1.")
    if args.step not in ("latest", "all") and not (args.step.isascii() and args.step.isdigit()):
        raise UsageError(f"--step {args.step} is invalid. Use a number, latest or all.")
    run = find_run(server, args.run or settings.run, args.project or settings.project)
    result = _load_samples(server, run, args, count)
    rows = result["results"]
    if not result["count"] and args.attempt not in ("", "current", "all"):
        check_attempt_exists(server, run, args.attempt)
    for note in result.get("notes", ()):
        print_message(str(note))
    print_samples(server, rows, args)
    where = f"{run['project']}/{run['name']}{describe_step(args.step, rows)}"
    print_message(f"{len(rows):,} of {result['count']:,} samples of {where}, {run['url']}")
    return 0


def describe_step(step: str, rows: Sequence[JsonObject]) -> str:
    """Names the step that `--step latest` found."""
    if step != "latest":
        return ""
    found = f"step {rows[0]['step']}" if rows else "newest step"
    return f", {found} (--step all for the run)"


def check_attempt_exists(server: ServerClient, run: JsonObject, key: str) -> None:
    """Raises UsageError if the run has no such attempt."""
    attempts = send_request(server, "GET", f"runs/{run['id']}/").json()["attempts"]
    keys = [str(attempt["key"]) for attempt in attempts]
    if key not in keys:
        raise UsageError(f"{run['project']}/{run['name']} has no attempt {key}. It has: {', '.join(keys) or 'none'}.")


def _load_samples(server: ServerClient, run: JsonObject, args: argparse.Namespace, count: int) -> dict[str, Any]:
    query = {
        "run": run["id"],
        "split": args.split,
        "step": args.step,
        "attempt": args.attempt or None,
        "q": args.q or None,
        "ordering": "-score" if args.best is not None else "score",
    }
    return load_pages(server, query, count)


def load_pages(server: ServerClient, query: JsonObject, count: int) -> dict[str, Any]:
    """Returns the first page of `samples/`, with up to `count` results of all pages."""
    query = {**query, "page_size": min(count, PAGE_SIZE)}
    first: dict[str, Any] = send_request(server, "GET", "samples/", query=query).json()
    page, rows, response = 1, list(first["results"]), first
    while len(rows) < count and response["next"]:
        page += 1
        response = send_request(server, "GET", "samples/", query={**query, "page": page}).json()
        rows += response["results"]
    return {**first, "results": rows[:count]}


def print_samples(server: ServerClient, rows: Sequence[JsonObject], args: argparse.Namespace) -> None:
    """Prints index rows as `--json` or `--text` asks for, by default as a table."""
    if args.json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif args.text:
        _print_texts(server, rows)
    else:
        _print_table(rows)


def _print_texts(server: ServerClient, rows: Sequence[JsonObject]) -> None:
    for row in rows:
        sample = send_request(server, "GET", f"samples/{row['id']}/").json()
        cells = _format_cells(row)
        where = ", ".join(filter(None, (cells["run"], f"step {cells['step']}")))
        print(f"=== {where}, score {cells['score']}, {cells['length']} characters, {row['id']}")
        print(f"--- prompt\n{remove_control_characters(format_text(sample.get('prompt')))}")
        has_no_text = sample.get("response") is None and sample.get("response_ids")
        response = NO_TEXT_MESSAGE if has_no_text else remove_control_characters(format_text(sample.get("response")))
        print(f"--- response\n{response}")
        if sample.get("ground_truth") not in (None, ""):
            print(f"--- expected\n{remove_control_characters(format_text(sample['ground_truth']))}")
        print()


def format_text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _format_cells(row: JsonObject) -> dict[str, str]:
    score = row.get("score")
    return {
        "run": clean_line(row.get("run_name") or "")[:MAX_RUN_CHARS],
        "step": str(row.get("step", "")),
        "score": "" if score is None else f"{score:.4g}",
        "group": clean_line(row.get("group") or "")[:8],
        "n": "" if row.get("index") is None else str(row["index"]),
        "length": f"{row.get('chars') or 0:,}",
        "id": str(row.get("id", ""))[:10],
    }


def _print_table(rows: Sequence[JsonObject]) -> None:
    if not rows:
        print("No samples.")
        return
    cells = [_format_cells(row) for row in rows]
    used = [name for name in COLUMNS if any(cell[name] for cell in cells)]
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in used}
    left = max(20, shutil.get_terminal_size((120, 24)).columns - sum(widths.values()) - 2 * len(used))
    print("  ".join(f"{name:>{widths[name]}}" for name in used) + "  end of the response")
    for cell, row in zip(cells, rows, strict=True):
        tail = cut_start(clean_line(" ".join(str(row.get("tail") or "").split())), left)
        print("  ".join(f"{cell[name]:>{widths[name]}}" for name in used) + f"  {tail}")


def cut_start(text: str, columns: int) -> str:
    """Returns the end of a text that fits into so many columns of a terminal. Wide characters take two columns."""
    length, width = 0, 0
    for char in reversed(text):
        width += 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if width > columns:
            break
        length += 1
    return text[len(text) - length :] if length else ""
