"""Where one `up` keeps its things: data, logs, sockets, and the lock that says the data is in use."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.up.errors import StartRefusedError
from rolloutdeck.up.mounts import find_network_type

SOCKET_PATH = re.compile(r"[A-Za-z0-9/._-]{1,80}\Z")  # sun_path holds 108 bytes; odd characters would need URL quoting
LOCK_SECONDS = 25


@dataclass(frozen=True)
class ServerPaths:
    data: Path
    server: Path
    sockets: Path

    @property
    def run(self) -> Path:
        return self.data / "run"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def token(self) -> Path:
        """The secret of the local token, mode 0600; it survives restarts."""
        return self.run / "token"


def find_server_folder() -> Path:
    """The folder with `manage.py`: inside an installed wheel, else the checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_server"
    return inside if inside.is_dir() else package.parent


def create_data_folders(data: Path) -> ServerPaths:
    """Make the folders of `data`. Raises StartRefusedError when it cannot be written."""
    try:
        for folder in (data, data / "run", data / "logs", data / "static"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data / "run" / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartRefusedError(
            f"The data folder {data} cannot be written ({error.strerror}); choose another with --data."
        ) from None
    return ServerPaths(data=data, server=find_server_folder(), sockets=socket_folder(data))


def socket_folder(data: Path) -> Path:
    """`data` itself where a socket works and its path is short, else a private folder below /tmp."""
    if SOCKET_PATH.match(str(data)) and not find_network_type(data):
        return data
    digest = hashlib.sha256(f"{socket.gethostname()}:{data}".encode()).hexdigest()[:12]
    folder = Path("/tmp") / f"rolloutdeck-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise StartRefusedError(f"{folder} does not belong to you alone; remove it, or choose a shorter --data path.")
    return folder


def acquire_data_lock(places: ServerPaths) -> int:
    """An open file that holds the lock on the data; the supervisor inherits it and holds it until its last child ended.

    Raises StartRefusedError when another `up` runs on the data; waits when one was killed and its children
    are still ending.
    """
    handle = os.open(places.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while not locked(handle):
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
        if is_running(owner) or time.monotonic() > deadline:
            os.close(handle)
            raise StartRefusedError(
                f"Rolloutdeck already runs on {places.data} (process {owner}); stop it first, or choose another --data."
            )
        time.sleep(0.1)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_running(owner: str) -> bool:
    """Whether "PID on HOST" is a live process; on another host nobody can tell, so yes."""
    pid, _, host = owner.partition(" on ")
    if not pid.isdigit() or host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
