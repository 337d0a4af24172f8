"""Starts one program that ends when its parent ends, so that nothing outlives `rolloutdeck up`.

    python -I _child.py PROGRAMS.json NAME

PROGRAMS.json maps a name to {"argv": [...], "cwd": "...", "env": {...}, "signal": number}. Run by path and isolated:
this folder must not become an import path, since some of its modules are named like the standard library's.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2), Linux


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `number` when the parent ends; survives exec, not fork. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew our wish
        sys.exit(1)


def main(programs: str, name: str) -> None:
    program = json.loads(Path(programs).read_text(encoding="utf-8"))[name]
    end_with_parent(program["signal"])
    os.chdir(program["cwd"])
    os.execvpe(program["argv"][0], program["argv"], {**os.environ, **program["env"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
