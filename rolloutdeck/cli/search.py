"""`rolloutdeck search`: searches the samples of all runs of a project from a shell, the newest run first."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from rolloutdeck.cli.common import connect, end_sentence, format_count, print_message, require_project
from rolloutdeck.cli.samples import load_pages, print_samples
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import ServerClient, ServerUnreachableError

MAX_SHOWN_SAMPLES = 20  # that the server sends with each run; the others are requested by page
READ_BYTES = 1 << 16


def main(args: argparse.Namespace) -> int:
    settings, server = connect(args)
    if args.limit < 1:
        raise UsageError("--limit must be at least 1.")
    if not args.q.strip():
        raise UsageError("The query is empty. Write one such as is:truncated or 'score<0.5'.")
    project = require_project(args, settings)
    found = SearchOutput(server, project, args)
    try:
        for line in iterate_runs(server, project, args.q, min(args.limit, MAX_SHOWN_SAMPLES)):
            found.add(line)
            if found.is_full:
                break
    except ServerUnreachableError as error:
        raise UsageError(f"The server does not answer: {error}.") from error
    found.finish()
    return 0


def iterate_runs(server: ServerClient, project: str, q: str, shown: int) -> Iterator[dict[str, Any]]:
    """Yields the result of each run as soon as the server has searched it. The server stops when the caller does.

    Raises UsageError with the server's message, and ServerUnreachableError.
    """
    path = "search/?" + urlencode({"project": project, "q": q, "shown": shown})
    with server.stream(path) as response:
        if response.status != 200 or not response.is_from_server:
            raise UsageError(end_sentence(response.error_message))
        rest = b""
        while chunk := response.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if "error" in line:
                    raise UsageError(end_sentence(line["error"]["message"]))
                yield line


class SearchOutput:
    """Prints up to `--limit` samples: as JSON at once, otherwise at the end, as columns need all rows."""

    def __init__(self, server: ServerClient, project: str, args: argparse.Namespace) -> None:
        self.server, self.project, self.args = server, project, args
        self.rows: list[dict[str, Any]] = []
        self.searched = self.unknown = self.matches = self.with_matches = 0
        self.problem = ""  # of the newest run that does not have what the query asks for

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= int(self.args.limit)

    def add(self, run: dict[str, Any]) -> None:
        self.searched += 1
        self.unknown += bool(run.get("unknown"))
        self.problem = self.problem or str(run.get("problem") or "")
        self.matches += run["count"]
        self.with_matches += bool(run["count"])
        if run["partial"]:
            names = f"--project {shlex.quote(self.project)} --run {shlex.quote(run['name'])}"
            more = f"`rolloutdeck samples {names} --step all --q QUERY` searches more (--split eval: evaluations)"
            print_message(f"{run['name']} is large: only its newest steps were searched; {more}.")
        rows = [{**row, "run_name": run["name"]} for row in self.load_samples(run)]
        self.rows += rows
        if self.args.json:
            print_samples(self.server, rows, self.args)

    def load_samples(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        count = min(run["count"], self.args.limit - len(self.rows))
        if count <= len(run["samples"]):
            return list(run["samples"][:count])
        query = {"run": run["run"], "step": "all", "q": self.args.q, "ordering": "-step"}
        return list(load_pages(self.server, query, count)["results"])

    def finish(self) -> None:
        """Raises UsageError if no run has what the query asks for."""
        if self.unknown and self.unknown == self.searched:
            nobody = f"No sample in project {self.project} has the key that this query asks for."
            raise UsageError(self.problem or nobody)
        if not self.args.json:
            print_samples(self.server, self.rows, self.args)
        runs, searched = format_count(self.with_matches, "run"), format_count(self.searched, "run")
        stopped = f" Stopped at --limit {self.args.limit:,}." if self.is_full else ""
        shown = f"{len(self.rows):,} of {self.matches:,} samples of {runs} in project {self.project}"
        print_message(f"{shown}; {searched} searched.{stopped}")
        if self.problem and not self.matches:
            print_message(f"Of {format_count(self.unknown, 'run')}: {self.problem}")
