"""Before the programs start: tables, the admin, the local token, and the file by which local clients find us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from rolloutdeck.up.errors import StartFailedError
from rolloutdeck.up.paths import ServerPaths
from rolloutdeck.up.supervisor import read_log_tail


class BootstrapResult(TypedDict):
    """`link` signs a person in once."""

    user: str
    token: str
    link: str


def bootstrap_server(places: ServerPaths, env: dict[str, str]) -> BootstrapResult:
    """Run the server's own `bootstrap` command. Broken, with its log, when it fails."""
    log = places.logs / "first_start.log"
    argv = [sys.executable, str(places.server / "manage.py"), "bootstrap"]
    with log.open("wb") as errors:
        done = subprocess.run(
            argv, cwd=places.server, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
    if done.returncode:
        raise StartFailedError(f"The database cannot be made ready; the end of {log}:\n{read_log_tail(log)}")
    first: BootstrapResult = json.loads(done.stdout)
    write_private(places.token, first["token"])
    return first


def write_local_server_file(url: str, token: str, data: Path) -> None:
    """Write ~/.rolloutdeck/local.json, which the command line and `init()` use when nothing else is set."""
    folder = Path.home() / ".rolloutdeck"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private(folder / "local.json", json.dumps({"url": url, "token": token, "data": str(data)}))


def write_private(path: Path, text: str) -> None:
    """Replace `path` at once; nobody else may read it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    fresh.replace(path)
