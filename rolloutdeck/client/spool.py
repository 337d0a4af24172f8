"""Files that wait for the server: whole ones only, in one folder per run, attempt, host and process.

A spool file is a JSON header line (`wire.SpoolHeader`, padded with blanks) and then the body, byte for byte. Its name
is when it was made, so that names in order are files in order. No network here.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rolloutdeck.client import lease
from rolloutdeck.client.launch import get_host_name
from rolloutdeck.lib import Settings, find_home_folder
from rolloutdeck.protocol import SpoolHeader

DEFAULT_SPOOL_BYTES = 2 << 30
CHECKPOINT_SPOOL_FOLDER = ".rolloutdeck-spool"
REJECTED_FOLDER = "rejected"
KINDS = ("run", "metrics", "dump", "artifact", "replay", "finish")
OWNER_KEYS = ("project", "uid", "name", "attempt")  # of a first line, without which nobody knows whose file it is
MAX_HEADER_BYTES = 4 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

BodyFactory = Callable[[], Iterable[bytes]]


class SpoolFullError(Exception):
    """The spool holds as many bytes as it may."""


def find_spool_root(settings: Settings, checkpoint_dir: Path | None = None, home: Path | None = None) -> Path:
    """Where spools lie: ROLLOUTDECK_SPOOL, else beside the checkpoints, else below the home folder."""
    if settings.spool:
        return Path(settings.spool).expanduser()
    return checkpoint_dir / CHECKPOINT_SPOOL_FOLDER if checkpoint_dir else find_home_folder(home) / "spool"


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file in a spool. `size` in bytes, header included."""

    path: Path
    kind: str
    size: int


def compute_file_age(file: SpoolFile) -> int:
    """Whole seconds since the file was written."""
    return int(max(0, time.time_ns() - int(file.path.stem)) // 10**9)


def list_spool_files(folder: Path) -> list[SpoolFile]:
    """The files of one spool folder that were not sent yet, oldest first."""
    found = []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:  # taken over meanwhile
        return []
    for entry in entries:
        kind = entry.name.rpartition(".")[2]
        if kind in KINDS and not entry.name.startswith("."):
            with suppress(FileNotFoundError):  # sent meanwhile: the others still wait
                found.append(SpoolFile(Path(entry.path), kind, entry.stat().st_size))
    return sorted(found, key=lambda file: file.path.name)


def find_spool_folders(below: Path) -> list[Path]:
    """The spool folders of a root, oldest first; the folder itself when it is one."""
    if (below / CHECKPOINT_SPOOL_FOLDER).is_dir():
        below = below / CHECKPOINT_SPOOL_FOLDER
    if (below / lease.LEASE_FILE).exists() or list_spool_files(below):
        return [below]
    try:
        inside = [path for path in below.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except OSError:
        return []
    return sorted((path for path in inside if "~" in path.name), key=lambda path: (_age(path), path.name))


def _age(folder: Path) -> str:
    return next((file.path.name for file in list_spool_files(folder)), "9")


def parse_spool_run_uid(folder: Path) -> str:
    return folder.name.partition("~")[0]


def read_spool_header(path: Path) -> tuple[SpoolHeader, int]:
    """The header and where the body begins. Raises OSError, and ValueError when the file is no spool file."""
    with path.open("rb") as file:
        first = file.readline(MAX_HEADER_BYTES)
    header = json.loads(first)
    if not isinstance(header, dict) or header.get("kind") not in KINDS or not isinstance(header.get("bytes"), int):
        raise ValueError("not a spool file")
    if missing := [key for key in OWNER_KEYS if not isinstance(header.get(key), str)]:
        raise ValueError(f"its first line does not say {', '.join(missing)}")
    return header, len(first)  # type: ignore[return-value]


def remove_spool_folder(folder: Path) -> None:
    """Removes a spool folder in which nothing waits any more; what was rejected stays."""
    try:
        lease.release_lease(folder)
        for entry in folder.iterdir():
            if entry.name.startswith("."):
                entry.unlink(missing_ok=True)
        folder.rmdir()
    except OSError:
        pass


class Spool:
    """The folder of this process. Made when the first file is written; made anew when another process took it.

    `dropped` counts by reason what could not be kept. `name` stays the same for the life of the process.
    """

    def __init__(self, below: Path, uid: str, attempt: str, url: str = "", limit: int = DEFAULT_SPOOL_BYTES) -> None:
        self.below, self.uid, self.url, self.limit = below, uid, url, limit
        host = _UNSAFE.sub("-", get_host_name())[:24]
        self.name = f"{uid}~{_UNSAFE.sub('-', attempt)[:24]}~{host}~{os.getpid()}~{uuid.uuid4().hex[:8]}"
        self.dropped: Counter[str] = Counter()
        self._folder: Path | None = None
        self._used = 0
        self._last = 0
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path | None:
        return self._folder

    def waiting(self) -> list[SpoolFile]:
        return list_spool_files(self._folder) if self._folder else []

    def write(self, header: SpoolHeader, body: BodyFactory) -> Path:
        """Makes one file durable and returns its path. `body` may be called again if the folder was taken meanwhile.

        Raises SpoolFullError, and OSError when the disk refuses. Half a file is never seen under its name.
        """
        try:
            return self._write(self._made(), header, body)
        except FileNotFoundError:
            if self._folder is None or self._folder.exists():
                raise  # not the folder: a file that the body is read from
            with self._lock:
                self._folder, self._used = None, 0
            return self._write(self._made(), header, body)

    def _made(self) -> Path:
        if self._folder is None:
            self.below.mkdir(parents=True, exist_ok=True)
            prepared = self.below / f".new-{uuid.uuid4().hex[:12]}"
            prepared.mkdir(mode=0o700)
            name = self.name if not (self.below / self.name).exists() else f"{self.name}-{uuid.uuid4().hex[:8]}"
            try:
                lease.acquire_lease(prepared, self.url, self.name)
                self._folder = prepared.rename(self.below / name)
            except OSError:
                remove_spool_folder(prepared)
                raise
        return self._folder

    def _write(self, folder: Path, header: SpoolHeader, body: BodyFactory) -> Path:
        kind = header["kind"]
        self._last = max(time.time_ns(), self._last + 1)
        path = folder / f"{self._last:020d}.{kind}"
        temporary = folder / f".{path.name}"
        # What opens and ends a run is small and must not be what is missing.
        room = self.limit - self._used if kind in ("dump", "metrics") else self.limit
        try:
            size = _write_file(temporary, {**header, "dropped": dict(self.dropped)}, body, room)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(folder)
        with self._lock:
            self._used += size
        return path

    def drop(self, reason: str, count: int = 1) -> None:
        """Counts what could not be kept."""
        with self._lock:
            self.dropped[reason] += count

    def sent(self, file: SpoolFile) -> None:
        """Called when a file was removed, so that its bytes are free again."""
        with self._lock:
            self._used = max(0, self._used - file.size)

    def renew(self) -> None:
        """Touches the lease. A folder that another process took is left to it."""
        folder = self._folder
        if folder and not lease.renew_lease(folder):
            with self._lock:
                if self._folder == folder:
                    self._folder, self._used = None, 0

    def close(self) -> int:
        """Gives the folder up, empty or not; how many files wait in it."""
        folder, left = self._folder, len(self.waiting())
        if folder and left:
            lease.release_lease(folder)
        elif folder:
            remove_spool_folder(folder)
        return left


def _write_file(path: Path, header: SpoolHeader, body: BodyFactory, room: int) -> int:
    """Writes body, then the header that knows its hash into the room left before it; returns the file's bytes."""
    blank = json.dumps({**header, "sha256": "0" * 64, "bytes": 10**15})
    head = len(blank.encode()) + 1
    digest, size = hashlib.sha256(), 0
    with path.open("wb", buffering=0) as file:
        file.seek(head)
        for piece in body():
            size += len(piece)
            if head + size > room:
                raise SpoolFullError
            digest.update(piece)
            _write_all(file.fileno(), piece)
        line = json.dumps({**header, "sha256": digest.hexdigest(), "bytes": size}).encode()
        file.seek(0)
        _write_all(file.fileno(), line.ljust(head - 1) + b"\n")
        os.fsync(file.fileno())
    return head + size


def _write_all(descriptor: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    """The rename itself must survive a power cut; some file systems refuse, and then there is nothing to do."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def read_file_chunks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a file that the trainer wrote, up to the length it has now."""
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (piece := file.read(min(size, left))):
            left -= len(piece)
            yield piece
