"""Finds the run that a command names."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import quote

from rolloutdeck.cli.common.requests import iterate_pages, send_request
from rolloutdeck.errors import MissingError, RunNotFoundError, UsageError
from rolloutdeck.lib import ServerClient

PAGE_SIZE = 500


def find_run(server: ServerClient, name: str, project: str) -> dict[str, Any]:
    """Returns the run with this name or id. Raises RunNotFoundError, and UsageError if several projects have it."""
    name = name.strip()  # as it is stored
    if not name:
        raise UsageError("No run is set. Use --run NAME or set ROLLOUTDECK_RUN.")
    query = {"name": name, "page_size": PAGE_SIZE, "project": project or None}
    runs = _load_similar_runs(server, query)
    exact = [run for run in runs if run["name"] == name]
    if len(exact) > 1:
        projects = ", ".join(run["project"] for run in exact)
        raise UsageError(f"Several projects have a run {name}: {projects}. Use --project.")
    if exact:
        return dict(exact[0])
    try:
        return dict(send_request(server, "GET", f"runs/{quote(name, safe='')}/").json())
    except MissingError:
        similar = f" Similar names: {', '.join(run['name'] for run in runs[:5])}." if runs else ""
        where = f" in project {project}" if project else ""
        raise RunNotFoundError(f"There is no run {name}{where}, or you have no access to it.{similar}") from None


def _load_similar_runs(server: ServerClient, query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the runs whose names contain a text: the server has no filter for the exact name."""
    found = iterate_pages(server, "runs/", query)
    runs = list(islice(found, 1))  # an error of the first page says what is wrong
    with suppress(MissingError):  # a page that went because a run was deleted meanwhile
        runs.extend(found)
    return runs
