"""`rolloutdeck samples`: the pages' query from a shell."""

from __future__ import annotations

import argparse
import json
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common import build_server_client, load_settings, print_message, send_request
from rolloutdeck.errors import RunNotFoundError, UsageError
from rolloutdeck.lib import ServerClient

PAGE = 500
DEFAULT_COUNT = 5
COLUMNS = ("step", "score", "group", "n", "length", "id")
TEXTLESS = "(only its tokens were recorded; `rolloutdeck import --tokenizer PATH` brings the text)"
Row = Mapping[str, Any]
_LOST = "\N{REPLACEMENT CHARACTER}"
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def main(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    server = build_server_client(settings)
    count = args.best if args.best is not None else DEFAULT_COUNT if args.worst is None else args.worst
    if count < 1:
        raise UsageError("--worst and --best need a number of at least 1.")
    if not _is_step(args.step):
        raise UsageError(f"--step {args.step}: say a number, latest or all.")
    run = find_run(server, args.run or settings.run, args.project or settings.project)
    found = _found(server, run, args, count)
    rows = found["results"]
    for note in found.get("notes", ()):
        print_message(str(note))
    if args.json:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif args.text:
        _print_texts(server, rows)
    else:
        _print_table(rows)
    print_message(f"{len(rows):,} of {found['count']:,} samples of {run['project']}/{run['name']} {run['url']}")
    return 0


def _is_step(text: str) -> bool:
    return text in ("latest", "all") or (text.isascii() and text.isdigit())


def find_run(server: ServerClient, name: str, project: str) -> dict[str, Any]:
    """The run of this name, or with this id. Raises RunNotFoundError, and UsageError for several in different
    projects."""
    if not name:
        raise UsageError("Which run? Say --run NAME or set ROLLOUTDECK_RUN.")
    query = {"name": name, "page_size": PAGE, "project": project or None}
    runs = send_request(server, "GET", "runs/", query=query).json()["results"]
    exact = [run for run in runs if run["name"] == name]
    if len(exact) > 1:
        raise UsageError(
            f"There are runs called {name} in {', '.join(run['project'] for run in exact)}; say --project."
        )
    if exact:
        return dict(exact[0])
    try:
        return dict(send_request(server, "GET", f"runs/{quote(name, safe='')}/").json())
    except UsageError:
        like = f" There is {', '.join(run['name'] for run in runs[:5])}." if runs else ""
        place = f" in project {project}" if project else ""
        raise RunNotFoundError(f"There is no run called {name}{place} that you may see.{like}") from None


def _found(server: ServerClient, run: Row, args: argparse.Namespace, count: int) -> dict[str, Any]:
    query = {
        "run": run["id"],
        "split": args.split,
        "step": args.step,
        "attempt": args.attempt or None,
        "q": args.q or None,
        "ordering": "-score" if args.best is not None else "score",
        "page_size": min(count, PAGE),
    }
    first: dict[str, Any] = send_request(server, "GET", "samples/", query=query).json()
    page, rows = 1, list(first["results"])
    found = first
    while len(rows) < count and found["next"]:
        page += 1
        found = send_request(server, "GET", "samples/", query={**query, "page": page}).json()
        rows += found["results"]
    return {**first, "results": rows[:count]}


def _print_texts(server: ServerClient, rows: Sequence[Row]) -> None:
    for row in rows:
        whole = send_request(server, "GET", f"samples/{row['id']}/").json()
        shown = _cells(row)
        print(f"=== step {shown['step']}, score {shown['score']}, {shown['length']} characters, {row['id']}")
        print(f"--- prompt\n{remove_control_characters(text_of(whole.get('prompt')))}")
        textless = whole.get("response") is None and whole.get("response_ids")
        print(f"--- response\n{TEXTLESS if textless else remove_control_characters(text_of(whole.get('response')))}")
        if whole.get("ground_truth") not in (None, ""):
            print(f"--- expected\n{remove_control_characters(text_of(whole['ground_truth']))}")
        print()


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def remove_control_characters(text: str, *, lines: bool = True) -> str:
    """Without what could write over the terminal or turn its direction; joiners inside emoji and scripts stay."""
    kept = "\n\t" if lines else ""
    return "".join(
        char if char in kept or (unicodedata.category(char) not in ("Cc", "Cs") and char not in _TURNS) else _LOST
        for char in text
    )


def _cells(row: Row) -> dict[str, str]:
    score = row.get("score")
    return {
        "step": str(row.get("step", "")),
        "score": "" if score is None else f"{score:.4g}",
        "group": remove_control_characters(str(row.get("group") or ""), lines=False)[:8],
        "n": "" if row.get("index") is None else str(row["index"]),
        "length": f"{row.get('chars') or 0:,}",
        "id": str(row.get("id", ""))[:10],
    }


def _print_table(rows: Sequence[Row]) -> None:
    if not rows:
        print("No samples.")
        return
    cells = [_cells(row) for row in rows]
    used = [name for name in COLUMNS if any(cell[name] for cell in cells)]
    widths = {name: max(len(name), *(len(cell[name]) for cell in cells)) for name in used}
    left = max(20, shutil.get_terminal_size((120, 24)).columns - sum(widths.values()) - 2 * len(used))
    print("  ".join(f"{name:>{widths[name]}}" for name in used) + "  end of the response")
    for cell, row in zip(cells, rows, strict=True):
        tail = ending(remove_control_characters(" ".join(str(row.get("tail") or "").split()), lines=False), left)
        print("  ".join(f"{cell[name]:>{widths[name]}}" for name in used) + f"  {tail}")


def ending(text: str, columns: int) -> str:
    """The end of a text that fits into so many columns of a terminal, where wide characters take two."""
    taken, width = 0, 0
    for char in reversed(text):
        width += 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if width > columns:
            break
        taken += 1
    return text[len(text) - taken :] if taken else ""
