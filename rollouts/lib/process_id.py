"""Names of processes that stay true after a pid is used again: who holds a claim, and is that one still there."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def read_start_ticks(pid: int) -> str:
    """When a process of this host started, in clock ticks since boot; empty when there is none or /proc is missing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command's name may hold spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]


def get_current_process_id() -> str:
    """`host:pid:start` of this process."""
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{read_start_ticks(os.getpid())}"


def has_process_ended(name: str) -> bool:
    """True when `name` was a process of this host that has ended. Other hosts' processes are never judged."""
    host, pid, start = (name.rsplit(":", 2) + ["", ""])[:3]
    if host != socket.gethostname()[:80] or not pid.isdigit() or not Path("/proc/self").exists():
        return False
    return read_start_ticks(int(pid)) != start
