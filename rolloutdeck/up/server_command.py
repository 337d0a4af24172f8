"""Runs one command of the server, such as `backup`, in place of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from rolloutdeck.up import checks
from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.paths import choose_data_folder, create_socket_folder, find_server_folder, read_dotenv
from rolloutdeck.up.restore_marker import check_restore_finished, mark_restore


def run_server_command(name: str, words: list[str], data: Path | None) -> NoReturn:
    """Becomes `manage.py NAME WORDS` on a data folder. Raises StartRefusedError."""
    os.umask(0o077)
    checks.check_python()
    read_dotenv()
    folder = choose_data_folder(data)
    if name == "restore":
        mark_restore(folder)
    else:
        check_restore_finished(folder)
        if not folder.is_dir():
            raise StartRefusedError(f"There is no data folder {folder}. Name it with --data.")
    server = find_server_folder()
    redis = os.environ.get("REDIS_URL") or f"unix://{create_socket_folder(folder) / 'redis.sock'}"
    path = os.pathsep.join(filter(None, [str(server), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "ROLLOUTDECK_DATA": str(folder), "REDIS_URL": redis, "PYTHONPATH": path}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, str(server / "manage.py"), name, *words], env)
