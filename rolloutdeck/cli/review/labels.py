"""`rolloutdeck labels`: lists labels, stores one or a file of them, shows and changes a project's rubric, and compares
labels with the score."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import (
    clean_line,
    connect,
    find_run,
    format_count,
    iterate_pages,
    print_message,
    read_text_lines,
    require_project,
    send_request,
    split_rows,
)
from rolloutdeck.cli.review.label_import import import_labels
from rolloutdeck.cli.review.reward_check import check_reward
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient

LABELS_PER_REQUEST = 1000
MAX_CELL_CHARS = 40
COLUMNS = ("step", "name", "value", "author", "source", "sample", "rationale")
JsonObject = Mapping[str, Any]


def main(args: argparse.Namespace) -> int:
    verbs = {
        "list": list_labels,
        "add": add_labels,
        "import": import_labels,
        "rubric": show_rubric,
        "reward-check": check_reward,
    }
    return verbs[args.verb](args)


def list_labels(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    run = find_run(server, args.run or settings.run, args.project or settings.project)
    filters = {name: getattr(args, name) or None for name in ("sample", "name", "author", "source", "split")}
    query = {"run": run["id"], "step": args.step, "withdrawn": "true" if args.withdrawn else None, **filters}
    rows = list(iterate_pages(server, "labels/", query))  # newest first
    if args.json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    else:
        print_table(rows)
    print_message(f"{format_count(len(rows), 'label')} of {run['project']}/{run['name']}")
    return 0


def print_table(rows: Sequence[JsonObject]) -> None:
    table = [COLUMNS, *(tuple(format_cell(row.get(column)) for column in COLUMNS) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(COLUMNS))]
    for line in table:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def format_cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = clean_line(" ".join(text.split()))
    is_id = len(text) == 52 and " " not in text
    return text if len(text) <= MAX_CELL_CHARS or is_id else f"{text[: MAX_CELL_CHARS - 1]}…"


def add_labels(args: argparse.Namespace) -> int:
    """Stores the label of the arguments, or those of --file."""
    _, server = connect(args)
    if args.file:
        if args.sample or args.name or args.value:
            raise UsageError("Use either --file or SAMPLE NAME VALUE.")
        return add_file(server, args.file)
    if not args.value:
        raise UsageError("Name the label: SAMPLE NAME VALUE, for example `labels add ID correct true`; or use --file.")
    names = ("sample", "name", "rationale", "source", "author", "start", "end")
    row = {name: value for name in names if (value := getattr(args, name)) not in (None, "")}
    response = send_request(server, "POST", "labels/", {**row, "value": parse_value(args.value)}).json()
    print_message("Stored." if response["changed"] else "No change: the label has this value already.")
    return 0


def parse_value(text: str) -> Any:
    """Returns a JSON value; anything else is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def add_file(server: ServerClient, path: Path) -> int:
    """Stores the labels of a JSONL file, at most 1,000 in one request. Each request is stored as a whole."""
    rows = list(read_rows(path))
    changed = stored = 0
    for part in split_rows(rows, LABELS_PER_REQUEST):
        try:
            changed += send_request(server, "POST", "labels/", {"labels": part}).json()["changed"]
        except UsageError as error:
            text = f"The first {format_count(stored, 'label')} are stored." if stored else "Nothing was stored."
            raise UsageError(f"{error} {text}") from error
        stored += len(part)
    print_message(f"{format_count(len(rows), 'label')} of {path}, {changed:,} new or changed.")
    return 0


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(read_text_lines(lines, path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number}, is not JSON: {error}.") from error
            if not isinstance(row, dict):
                raise UsageError(f"{path}, line {number}, is not an object with sample, name and value.")
            yield row


def show_rubric(args: argparse.Namespace) -> int:
    """Prints the rubric as JSON, in the form that --set reads."""
    settings, server = connect(args)
    path = f"projects/{quote(require_project(args, settings), safe='')}/rubric/"
    current = send_request(server, "GET", path, query={"version": args.version}).json()
    if args.set is None:
        shown = {name: current[name] for name in ("version", "questions", "guidelines")}
        print(json.dumps(shown, ensure_ascii=False, indent=2))
        return 0
    rubric = read_json_object(args.set, "questions and guidelines, as `labels rubric` prints it")
    base = rubric.get("version", current["version"])
    body = {"questions": rubric.get("questions"), "guidelines": rubric.get("guidelines", ""), "base_version": base}
    saved = send_request(server, "PUT", path, body).json()
    print_message(f"The rubric is version {saved['version']}.")
    return 0


def read_json_object(path: Path, expected: str) -> dict[str, Any]:
    """Raises UsageError, OSError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} must have an object with {expected}.")
    return data
