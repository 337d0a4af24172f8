"""The folders of one `up` for data, logs and sockets, and the lock that prevents a second `up` on the same data."""

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

SOCKET_PATH = re.compile(r"[A-Za-z0-9/._-]{1,80}\Z")  # sun_path has 108 bytes; other characters need URL quoting
LOCK_SECONDS = 25


@dataclass(frozen=True)
class ServerPaths:
    """data: the data folder. server: the folder with `manage.py`. sockets: the folder of the Unix sockets."""

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
        """The file with the secret of the local token, mode 0600. It remains after restarts."""
        return self.run / "token"


def find_server_folder() -> Path:
    """Returns the folder with `manage.py`: `_server` in an installed wheel, otherwise the checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_server"
    return installed if installed.is_dir() else package.parent


def create_data_folders(data: Path) -> ServerPaths:
    """Creates the folders of `data` and returns the paths. Raises StartRefusedError if `data` is not writable."""
    try:
        for folder in (data, data / "run", data / "logs", data / "static"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data / "run" / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StartRefusedError(
            f"The data folder {data} is not writable ({error.strerror}). Choose another with --data."
        ) from None
    return ServerPaths(data=data, server=find_server_folder(), sockets=create_socket_folder(data))


def create_socket_folder(data: Path) -> Path:
    """Returns `data` if sockets work there and its path is short, otherwise a private folder below /tmp."""
    if SOCKET_PATH.match(str(data)) and not find_network_type(data):
        return data
    digest = hashlib.sha256(f"{socket.gethostname()}:{data}".encode()).hexdigest()[:12]
    folder = Path("/tmp") / f"rolloutdeck-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StartRefusedError(f"{folder} is accessible to other users. Remove it, or choose a shorter --data path.")
    return folder


def acquire_data_lock(paths: ServerPaths) -> int:
    """Locks the data folder and returns the handle of the lock file.

    The supervisor inherits the handle, so the lock exists until its last child has ended. Raises StartRefusedError if
    another `up` uses the data. Waits up to 25 s if one was killed and its children are still ending.
    """
    handle = os.open(paths.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while not try_lock(handle):
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
        if is_running(owner) or time.monotonic() > deadline:
            os.close(handle)
            raise StartRefusedError(
                f"Rolloutdeck already runs on {paths.data} (process {owner}). Stop it first, or choose another --data."
            )
        time.sleep(0.1)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def try_lock(handle: int) -> bool:
    """Locks the file without waiting. Returns whether this succeeded."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_running(owner: str) -> bool:
    """Returns whether "PID on HOST" is a running process. On another host this is unknown, so True."""
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
