"""Starts one program that ends when its parent ends, so that no process outlives `rolloutdeck up`.

    python -I child.py PROGRAMS.json NAME

PROGRAMS.json maps a name to {"argv": [...], "cwd": "...", "env": {...}, "signal": number, "parent": pid}. Without
`parent`, the parent is the supervisor, whose process id is in supervisor.pid next to the file. The file is run by path
in isolated mode: this folder must not become an import path, because some modules have names of the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
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


def main(programs: str, name: str) -> None:
    program = json.loads(Path(programs).read_text(encoding="utf-8"))[name]
    parent = program.get("parent") or int(Path(programs).with_name("supervisor.pid").read_text())
    end_with_parent(parent, program["signal"])
    os.chdir(program["cwd"])
    os.execvpe(program["argv"][0], program["argv"], {**os.environ, **program["env"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
