"""Who owns a spool folder. A lease file, because shared file systems can't be trusted with flock.

The owner touches its lease every few seconds. On the owner's machine its process id tells at once whether it lives;
anywhere else a lease that nobody touched for LEASE_SECONDS is abandoned. Taking over is renaming the folder, which only
one of several takers can do, and which a stalled owner notices as its folder being gone.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

from rolloutdeck.client.launch import get_host_name

LEASE_FILE = "lease"
LEASE_SECONDS = 120
LEASE_RENEWAL_SECONDS = 10


def _machine() -> str:
    """Tells whether process ids can be compared: the same kernel boot and the same pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{get_host_name()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return get_host_name()


def _started(pid: int) -> str:
    """Start time of a process in kernel ticks, so that a reused process id is seen; "" where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def acquire_lease(folder: Path, url: str, name: str = "") -> None:
    """Makes this process the owner.

    `url` is the server the spool is meant for, "" while none is known; `name` the spool's own name, which stays when
    the folder changes hands.
    """
    pid, name = os.getpid(), name or folder.name
    note = {
        "host": get_host_name(),
        "pid": pid,
        "machine": _machine(),
        "started": _started(pid),
        "url": url,
        "name": name,
    }
    temporary = folder / f".{LEASE_FILE}-{uuid.uuid4().hex[:8]}"
    temporary.write_text(json.dumps(note) + "\n", "utf-8")
    temporary.replace(folder / LEASE_FILE)


def renew_lease(folder: Path) -> bool:
    """Renews the lease; False when the folder was taken by another process."""
    try:
        os.utime(folder / LEASE_FILE)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # a full or slow disk is no reason to give the folder up
    return True


def release_lease(folder: Path) -> None:
    """Anybody may take the folder from now on."""
    (folder / LEASE_FILE).unlink(missing_ok=True)


def read_spool_server(folder: Path) -> str:
    """The address of the server that the spool was written for, "" if none was known."""
    return str(_note(folder / LEASE_FILE).get("url") or "")


def read_spool_name(folder: Path) -> str:
    """The name under which what this spool dropped is counted."""
    return str(_note(folder / LEASE_FILE).get("name") or folder.name)


def is_abandoned(folder: Path) -> bool:
    try:
        touched = (folder / LEASE_FILE).stat().st_mtime
    except FileNotFoundError:
        return folder.is_dir()
    except OSError:
        return False
    note = _note(folder / LEASE_FILE)
    if note.get("machine") == _machine() and isinstance(pid := note.get("pid"), int):
        return not _alive(pid, str(note.get("started", "")))
    return _now(folder.parent) - touched > LEASE_SECONDS


def take_over_spool(folder: Path, url: str) -> Path | None:
    """Takes an abandoned folder over; its new path, or None when it is not abandoned or somebody was faster."""
    if not is_abandoned(folder):
        return None
    meant, name = read_spool_server(folder) or url, read_spool_name(folder)
    taken = folder.with_name(f"{folder.name.rpartition('~')[0] or folder.name}~{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(taken)
        acquire_lease(taken, meant, name)
    except OSError:
        return None
    return taken


def _note(path: Path) -> dict[str, object]:
    try:
        note = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _alive(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process
    return not started or _started(pid) in ("", started)


def _now(folder: Path) -> float:
    """The time by the clock that stamps this folder's files, which may be a file server's."""
    clock = folder / ".clock"
    try:
        clock.touch()
        return clock.stat().st_mtime
    except OSError:
        return time.time()
