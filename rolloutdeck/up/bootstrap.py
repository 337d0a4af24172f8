"""Prepares the start: database tables, the admin user, the local token, and the file with the server's URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from rolloutdeck.up.errors import StartFailedError
from rolloutdeck.up.paths import ServerPaths
from rolloutdeck.up.supervisor import describe_log_tail


class BootstrapResult(TypedDict):
    """The output of the `bootstrap` command. `link` signs the user in once."""

    user: str
    token: str
    link: str


def bootstrap_server(paths: ServerPaths, env: dict[str, str]) -> BootstrapResult:
    """Runs the server's `bootstrap` command and saves the local token. Raises StartFailedError if it fails."""
    log = paths.logs / "first_start.log"
    argv = [sys.executable, str(paths.server / "manage.py"), "bootstrap"]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with log.open("wb") as errors:
        process = subprocess.run(argv, cwd=paths.server, env=env, stdin=null, stdout=pipe, stderr=errors)
    if process.returncode:
        raise StartFailedError(f"Can't prepare the database. {describe_log_tail(log)}")
    result: BootstrapResult = json.loads(process.stdout)
    write_private_file(paths.token, result["token"])
    return result


def write_local_server_file(url: str, token: str, data: Path) -> None:
    """Writes ~/.rolloutdeck/local.json, the default server of the command line and of `init()`."""
    folder = Path.home() / ".rolloutdeck"
    folder.mkdir(mode=0o700, exist_ok=True)
    write_private_file(folder / "local.json", json.dumps({"url": url, "token": token, "data": str(data)}))


def write_private_file(path: Path, text: str) -> None:
    """Replaces the file atomically. Only this user may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    temporary.replace(path)
