"""Ids of processes that remain unique after a pid is used again. Claims store the id of the process that owns them."""

import os
import socket
from pathlib import Path


def read_start_ticks(pid: int) -> str:
    """Returns when a process started, in clock ticks since boot; "" if there is no such process or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # the command's name may contain spaces and brackets
    return "" if fields[0] in "ZX" else fields[19]


def get_current_process_id() -> str:
    """Returns `host:pid:start` of this process."""
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{read_start_ticks(os.getpid())}"


def has_process_ended(name: str) -> bool:
    """Returns whether `name` is a process of this host that has ended. Always False for processes of other hosts."""
    host, pid, start = (name.rsplit(":", 2) + ["", ""])[:3]
    if host != socket.gethostname()[:80] or not pid.isdigit() or not Path("/proc/self").exists():
        return False
    return read_start_ticks(int(pid)) != start
