"""Starts one program that ends when its parent ends, so that no process outlives `rolloutdeck up`.

    python -I child.py PROGRAMS.json NAME

PROGRAMS.json maps a name to {"argv": [...], "cwd": "...", "env": {...}, "signal": number, "parent": pid}. Without
`parent`, the parent is the supervisor, whose process id is in the variable UP_SUPERVISOR_PID, or in supervisor.pid next
to the file. The pid file may be missing or empty after a full disk, the variable never is. The file is run by path
in isolated mode: this folder must not become an import path, because some modules have names of the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2), Linux


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Lets the kernel send signal `number` to this process when process `parent` ends. Linux only.

    The setting survives exec, not fork. The caller passes `parent`: here, os.getppid() could already return the process
    that has adopted an orphan.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(1)


def find_supervisor(programs: Path) -> int:
    """Returns the process id of the supervisor. Without a variable and a readable file: of the parent process."""
    candidates = [os.environ.get("UP_SUPERVISOR_PID", "")]
    with suppress(OSError, ValueError):
        candidates.append(programs.with_name("supervisor.pid").read_text(encoding="ascii").strip())
    return next((int(text) for text in candidates if text.isascii() and text.isdigit()), os.getppid())


def main(programs: str, name: str) -> None:
    program = json.loads(Path(programs).read_text(encoding="utf-8"))[name]
    end_with_parent(program.get("parent") or find_supervisor(Path(programs)), program["signal"])
    os.chdir(program["cwd"])
    os.execvpe(program["argv"][0], program["argv"], {**os.environ, **program["env"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
