"""A PostgreSQL cluster of its own, which can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

OPTIONS = "-c listen_addresses= -c max_connections=200 -c unix_socket_directories="


def find_programs() -> Path | None:
    """The newest installed version, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return found[-1].parent if found else None


class Postgres:
    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="rd-pg-"))
        # PostgreSQL refuses to run as root.
        self.prefix = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self.prefix:
            shutil.chown(self.folder, "postgres")
        self.folder.chmod(0o755)
        self.run("initdb", "-D", "data", "-U", "rolloutdeck", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
        self.start()
        self.run("createdb", "-h", str(self.folder), "-U", "rolloutdeck", "rolloutdeck")
        self.url = f"postgres://rolloutdeck@/{self.folder}/rolloutdeck"

    def run(self, program: str, *args: str) -> None:
        command = [*self.prefix, str(self.programs / program), *args]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, timeout=600)

    def start(self) -> None:
        """Starts the cluster; after a kill as soon as its last process has ended."""
        deadline = time.monotonic() + 200
        while True:
            try:
                self.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", OPTIONS + str(self.folder), "start")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def pids(self) -> list[int]:
        """The postmaster first, then its children."""
        try:
            master = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return []
        listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(master)], capture_output=True, text=True)
        return [master, *map(int, listing.stdout.split())]

    def kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        for pid in self.pids():
            self.kill(pid)
        time.sleep(0.5)
        shutil.rmtree(self.folder, ignore_errors=True)
