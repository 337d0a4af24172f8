"""The folders of one `up` for data, logs and sockets, their file systems, and the lock against a second `up`."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.lib import open_replacement, try_lock
from rolloutdeck.up.errors import StartRefusedError

SOCKET_PATH = re.compile(r"[A-Za-z0-9/._-]{1,80}\Z")  # sun_path has 108 bytes; other characters need URL quoting
LOCK_SECONDS = 25
PRIVATE_NAMES = ("blobs", "bodies", "images", "incoming", "logs", "raw", "run", "secret-key", "static")
# On these, SQLite's locks and shared-memory index do not work between hosts (sqlite.org/wal.html, section 1).
NETWORK_TYPES = re.compile(
    r"nfs4?|cifs|smb3?|smbfs|afs|ncpfs|lustre|gpfs|ceph|beegfs\w*|panfs|pvfs2|orangefs|glusterfs|wekafs|9p|virtio-9p"
    r"|fuse\.(?:sshfs|glusterfs|ceph\S*|juicefs|s3fs|goofys|gcsfuse|rclone|JuiceFS\S*|lustre|weka\S*|mount-s3|blobfuse\S*)"
)


@dataclass(frozen=True)
class ServerPaths:
    """data: the data folder. server: the folder with `manage.py`. sockets: the folder of the Unix sockets.

    token: the file with the secret of the local token, mode 0600. It remains after restarts.
    """

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
        return self.run / "token"


def find_server_folder() -> Path:
    """Returns the folder with `manage.py`: `_server` in an installed wheel, otherwise the checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_server"
    return installed if installed.is_dir() else package.parent


def read_dotenv() -> None:
    """Loads the checkout's `.env`, as the Django settings do. Variables of the shell have priority."""
    dotenv = find_server_folder() / ".env"
    if os.environ.get("DJANGO_READ_DOT_ENV_FILE") != "off" and dotenv.exists():
        import environ

        environ.Env.read_env(dotenv)


def choose_data_folder(data: Path | None) -> Path:
    """Returns the data folder: an option of the command line, else `ROLLOUTDECK_DATA`, else the default."""
    return Path(data or os.environ.get("ROLLOUTDECK_DATA") or "~/.rolloutdeck/data").expanduser().absolute()


def create_data_folders(data: Path) -> ServerPaths:
    """Creates the folders of `data` and returns the paths. Raises StartRefusedError if `data` is not writable."""
    try:
        for folder in (data, data / "run", data / "logs", data / "static"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = data / "run" / ".writable"
        probe.touch()
        probe.unlink(missing_ok=True)  # another process may look at the same moment
        protect_data(data)
    except OSError as error:
        message = f"The data folder {data} is not writable ({error.strerror}). Choose another with --data."
        raise StartRefusedError(message) from None
    return ServerPaths(data=data, server=find_server_folder(), sockets=create_socket_folder(data))


def protect_data(data: Path) -> None:
    """Removes every right of other users from what the server has stored in `data`, not from `data` itself.

    A closed folder protects everything below it, so this is quick. Raises OSError if a file has another owner.
    """
    own = [data / name for name in PRIVATE_NAMES]
    for path in [*own, *data.glob("db.sqlite3*")]:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                path.chmod(stat.S_IMODE(mode) & ~0o077)


def is_open_to_others(data: Path) -> bool:
    """Returns whether other users may enter or list the data folder."""
    return bool(data.stat().st_mode & 0o077)


def replace_file(path: Path, text: str) -> None:
    """Replaces a file in one step, unless it has this text already. On a full disk the old file stays.

    Raises OSError if the new text cannot be written.
    """
    with suppress(OSError, ValueError):
        if path.read_text(encoding="utf-8") == text:
            return
    with open_replacement(path) as file:
        file.write(text.encode())


def open_log(path: Path) -> BinaryIO:
    """Opens a new log. If the disk has no room for one more file, what is written is lost."""
    try:
        return path.open("wb")
    except OSError:
        return Path(os.devnull).open("wb")


def create_socket_folder(data: Path) -> Path:
    """Returns `data` if sockets work there and its path is short, otherwise a private folder below /tmp."""
    if SOCKET_PATH.match(str(data)) and not find_network_type(data):
        return data
    folder = Path("/tmp") / f"rolloutdeck-{hash_data_path(data)}"
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def create_telemetry_folder(data: Path) -> Path:
    """Returns a private folder in memory for the numbers of all processes on this machine, see
    `rollouts/telemetry/instruments.py`. Not on the disk of the data: a process that writes to a mapped file on a full
    disk is killed."""
    parent = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"rolloutdeck-{hash_data_path(data)}"
    folder.mkdir(mode=0o700, exist_ok=True)
    check_private(folder)
    return folder


def hash_data_path(data: Path) -> str:
    return hashlib.sha256(f"{socket.gethostname()}:{data}".encode()).hexdigest()[:12]


def check_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StartRefusedError(f"{folder} is accessible to other users. Remove it, or choose another --data path.")


def acquire_data_lock(paths: ServerPaths) -> int:
    """Locks the data folder and returns the handle of the lock file.

    The supervisor inherits the handle, so the lock exists until its last child has ended. Raises StartRefusedError if
    another `up` uses the data. Waits up to 25 s if one was killed and its children are still ending.
    On a file system without locks nothing is locked.
    """
    handle = os.open(paths.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while try_lock(handle) is False:
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
        if _is_running(owner) or time.monotonic() > deadline:
            os.close(handle)
            reason = f"Rolloutdeck already runs on {paths.data} (process {owner})."
            raise StartRefusedError(f"{reason} Stop it first, or choose another --data.")
        time.sleep(0.1)
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


def _is_running(owner: str) -> bool:
    """Returns whether "PID on HOST" is a running process. On another host this is unknown, so True."""
    pid, _, host = owner.partition(" on ")
    try:
        if pid.isdigit() and host == socket.gethostname():
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def find_network_type(path: Path, table: Path = Path("/proc/self/mountinfo")) -> str:
    """Returns the type of the network file system of `path`, from a table as in proc_pid_mountinfo(5); "" if local."""
    try:
        lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    path, longest, kind = path.resolve(), -1, ""
    for line in lines:
        fields, _, rest = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        if path.is_relative_to(point) and len(point) >= longest:
            longest, kind = len(point), rest.split(" ")[0]
    return kind if NETWORK_TYPES.fullmatch(kind) else ""
