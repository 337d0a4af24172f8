"""Ownership of spool folders, by a lease file, because flock is not reliable on shared file systems.

The owner renews its lease every few seconds. On the owner's machine its process id shows whether it is alive; on other
machines a lease that was not renewed for LEASE_SECONDS is abandoned. A takeover renames the folder: only one of several
processes can succeed, and a stalled owner notices that its folder is missing.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path

from rolloutdeck.client.launch import has_ended, read_machine_id, read_start_time
from rolloutdeck.client.process_identity import get_host_name

LEASE_FILE = "lease"
LEASE_SECONDS = 120
LEASE_RENEWAL_SECONDS = 10


def _read_machine_id() -> str:
    """Returns an id of the machine and the pid namespace: process ids can be compared if it is equal."""
    return f"{get_host_name()} {read_machine_id()}".strip()


def acquire_lease(folder: Path, url: str, name: str = "", attempt: str = "") -> None:
    """Makes this process the owner.

    `url` is the server that the spool is for, "" if unknown. `name` is the spool's own name, which stays the same after
    a takeover. `attempt` is that of the owner, "" after a takeover.
    """
    pid = os.getpid()
    process = {"host": get_host_name(), "pid": pid, "machine": _read_machine_id(), "started": read_start_time(pid)}
    text = json.dumps({**process, "url": url, "name": name or folder.name, "attempt": attempt}) + "\n"
    temporary = folder / f".{LEASE_FILE}-{uuid.uuid4().hex[:8]}"
    try:
        temporary.write_text(text, "utf-8")
        temporary.replace(folder / LEASE_FILE)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with (folder / LEASE_FILE).open("r+", encoding="utf-8") as file:  # a full disk still has its space
            file.write(text)
            file.truncate()


def renew_lease(folder: Path) -> bool:
    """Renews the lease. Returns False if another process took the folder over."""
    try:
        os.utime(folder / LEASE_FILE)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # on a full or slow disk the folder is still ours
    return True


def release_lease(folder: Path) -> None:
    """Removes the lease: any process may take the folder over. If the disk fails, the lease expires."""
    with suppress(OSError):
        (folder / LEASE_FILE).unlink(missing_ok=True)


def read_spool_server(folder: Path) -> str:
    """Returns the URL of the server that the spool was written for, "" if unknown."""
    return str(_read_lease(folder / LEASE_FILE).get("url") or "")


def read_spool_name(folder: Path) -> str:
    """Returns the name under which the spool's dropped data is counted."""
    return str(_read_lease(folder / LEASE_FILE).get("name") or folder.name)


def read_running_attempt(folder: Path) -> str:
    """Returns the attempt of the process that owns the folder, if it runs on this machine; else ""."""
    note = _read_lease(folder / LEASE_FILE)
    pid, attempt = note.get("pid"), str(note.get("attempt") or "")
    is_here = note.get("machine") == _read_machine_id() and isinstance(pid, int)
    return attempt if is_here and _is_alive(pid, str(note.get("started", ""))) else ""  # type: ignore[arg-type]


def is_abandoned(folder: Path) -> bool:
    """Whether the owner of the folder is dead or does not renew its lease."""
    try:
        renewed_at = (folder / LEASE_FILE).stat().st_mtime
    except FileNotFoundError:
        return folder.is_dir()
    except OSError:
        return False
    note = _read_lease(folder / LEASE_FILE)
    if note.get("machine") == _read_machine_id() and isinstance(pid := note.get("pid"), int):
        return not _is_alive(pid, str(note.get("started", "")))
    return _read_file_system_time(folder.parent) - renewed_at > LEASE_SECONDS


def take_over_spool(folder: Path, url: str) -> Path | None:
    """Takes an abandoned folder over and returns its new path.

    Returns None if the folder is not abandoned or another process was faster.
    """
    if not is_abandoned(folder):
        return None
    spool_server, name = read_spool_server(folder) or url, read_spool_name(folder)
    new_folder = folder.with_name(f"{folder.name.rpartition('~')[0] or folder.name}~{uuid.uuid4().hex[:8]}")
    try:
        folder.rename(new_folder)
        acquire_lease(new_folder, spool_server, name)
    except OSError:
        return None
    return new_folder


def _read_lease(path: Path) -> dict[str, object]:
    try:
        note = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _is_alive(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's process
    if has_ended(pid):
        return False
    return not started or read_start_time(pid) in ("", started)


def _read_file_system_time(folder: Path) -> float:
    """Returns the current time of the folder's file system, which may be a file server's clock."""
    clock = folder / ".clock"
    try:
        clock.touch()
        return clock.stat().st_mtime
    except OSError:
        return time.time()
