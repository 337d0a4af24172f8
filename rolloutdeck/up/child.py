"""Starts one program that ends when its parent ends, so that nothing outlives `rolloutdeck up`.

    python -I child.py PROGRAMS.json NAME

PROGRAMS.json maps a name to {"argv": [...], "cwd": "...", "env": {...}, "signal": number, "parent": pid}; without a
`parent`, it is the supervisor, whose number stands beside the file in supervisor.pid. Run by path and isolated: this
folder must not become an import path, since some of its modules are named like the standard library's.
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
    """Ask the kernel to send this process `number` when process `parent` ends; survives exec, not fork. Linux only.

    `parent` is noted before this process is started: asked here, it could already be whoever adopted an orphan.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew our wish
        os._exit(1)


def main(programs: str, name: str) -> None:
    program = json.loads(Path(programs).read_text(encoding="utf-8"))[name]
    parent = program.get("parent") or int(Path(programs).with_name("supervisor.pid").read_text())
    end_with_parent(parent, program["signal"])
    os.chdir(program["cwd"])
    os.execvpe(program["argv"][0], program["argv"], {**os.environ, **program["env"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
