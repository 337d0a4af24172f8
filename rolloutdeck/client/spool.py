"""Files that wait for upload: complete files in one folder per run, attempt, host and process.

A spool file is a JSON header line (`wire.SpoolHeader`, padded with blanks), then the body byte for byte. Its name is
its creation time, so that name order is creation order. No network access here.
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
from typing import Any

from rolloutdeck.client import lease
from rolloutdeck.client.process_identity import clean_name, get_host_name
from rolloutdeck.lib import Settings, find_home_folder
from rolloutdeck.protocol import SpoolHeader

DEFAULT_SPOOL_BYTES = 2 << 30
CHECKPOINT_SPOOL_FOLDER = ".rolloutdeck-spool"
REJECTED_FOLDER = "rejected"
KINDS = ("run", "metrics", "dump", "artifact", "replay", "context", "finish")
OWNER_KEYS = ("project", "uid", "name", "attempt")  # required in the first line, to know which run the file belongs to
RESERVE_FILE = ".reserve"  # space for the file that ends the run, so that a full disk can still take it
RESERVED_BYTES = 8 << 10
MAX_HEADER_BYTES = 4 << 20
MAX_REASON_CHARS = 80  # of a reason why data was dropped
MAX_REASONS = 100  # different ones; every header and heartbeat contains all of them
MAX_COUNT = 2**63 - 1
SAMPLES_LABEL = "samples: "  # the start of the reasons for which the client drops rows
FILES_LABEL = "files: "  # the same of files
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]+")

BodyFactory = Callable[[], Iterable[bytes]]


class SpoolFullError(Exception):
    """The spool has reached its size limit."""


def find_spool_root(settings: Settings, checkpoint_dir: Path | None = None, home: Path | None = None) -> Path:
    """Returns the folder of spools: ROLLOUTDECK_SPOOL, else next to the checkpoints, else below the home folder."""
    if settings.spool:
        try:
            return Path(settings.spool).expanduser()
        except RuntimeError:  # the user has no home folder
            return Path(settings.spool.replace("~", str(find_home_folder(home).parent), 1))
    return checkpoint_dir / CHECKPOINT_SPOOL_FOLDER if checkpoint_dir else find_home_folder(home) / "spool"


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file in a spool. `size` is in bytes, with the header."""

    path: Path
    kind: str
    size: int


def compute_file_age(file: SpoolFile) -> float:
    """Returns the seconds since the file was written."""
    return max(0, time.time_ns() - int(file.path.stem)) / 10**9


def list_spool_files(folder: Path) -> list[SpoolFile]:
    """Returns the files of one spool folder that were not uploaded yet, oldest first; none if it is gone or another
    user's. Raises OSError if the disk fails."""
    files = []
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, PermissionError):  # another process took the folder over, or it is another user's
        return []
    for entry in entries:
        kind = entry.name.rpartition(".")[2]
        if kind in KINDS and not entry.name.startswith("."):
            with suppress(OSError):  # uploaded meanwhile: the others still wait
                files.append(SpoolFile(Path(entry.path), kind, entry.stat().st_size))
    return sorted(files, key=lambda file: file.path.name)


def find_spool_folders(root: Path) -> list[Path]:
    """Returns the spool folders of a root, oldest first; the folder itself if it is a spool folder.

    Those of other users are included, also if this process cannot read them.
    """
    try:
        if (root / CHECKPOINT_SPOOL_FOLDER).is_dir():
            root = root / CHECKPOINT_SPOOL_FOLDER
        if (root / lease.LEASE_FILE).exists() or list_spool_files(root):
            return [root]
        folders = [path for path in root.iterdir() if not path.name.startswith(".") and path.is_dir()]
    except PermissionError:
        return [root] if "~" in root.name else []
    except OSError:
        return []
    return sorted((path for path in folders if "~" in path.name), key=lambda path: (_find_oldest_name(path), path.name))


def _find_oldest_name(folder: Path) -> str:
    return next((file.path.name for file in list_spool_files(folder)), "9")


def parse_spool_run_uid(folder: Path) -> str:
    """Returns the run uid in a spool folder's name."""
    return folder.name.partition("~")[0]


def read_spool_header(path: Path) -> tuple[SpoolHeader, int]:
    """Returns the header and the offset of the body. Raises OSError, or ValueError if it is not a spool file."""
    with path.open("rb") as file:
        first_line = file.readline(MAX_HEADER_BYTES)
    header = json.loads(first_line)
    if not isinstance(header, dict) or header.get("kind") not in KINDS or not isinstance(header.get("bytes"), int):
        raise ValueError("not a spool file")
    if missing := [key for key in OWNER_KEYS if not isinstance(header.get(key), str)]:
        raise ValueError(f"its first line lacks {', '.join(missing)}")
    return header, len(first_line)  # type: ignore[return-value]


def remove_spool_folder(folder: Path) -> None:
    """Removes a spool folder without waiting files. Rejected files stay."""
    with suppress(OSError):
        lease.release_lease(folder)
        for entry in folder.iterdir():
            if entry.name.startswith("."):
                entry.unlink(missing_ok=True)
        folder.rmdir()


class Spool:
    """The spool folder of this process. It is created with the first file, and again if another process took it over.

    `dropped` counts by reason the data that could not be stored. `name` stays the same while the process runs.
    """

    def __init__(self, root: Path, uid: str, attempt: str, url: str = "", limit: int = DEFAULT_SPOOL_BYTES) -> None:
        self.root, self.uid, self.attempt, self.url, self.limit = root, uid, attempt, url, limit
        host = _UNSAFE_CHARACTERS.sub("-", get_host_name())[:24]
        self.name = f"{uid}~{_UNSAFE_CHARACTERS.sub('-', attempt)[:24]}~{host}~{os.getpid()}~{uuid.uuid4().hex[:8]}"
        self.dropped: Counter[str] = Counter()
        self.read_error = ""  # of the last listing
        self.folder: Path | None = None
        self._used_bytes = 0
        self._last_time_ns = 0
        self._lock = threading.Lock()

    def list_files(self, folder: str = "") -> list[SpoolFile]:
        """Returns the files of this process that wait, or those in a folder of its spool. If the disk fails, the list
        is empty, and `read_error` says why."""
        try:
            files = list_spool_files(self.folder / folder) if self.folder else []
        except OSError as error:
            self.read_error = str(error.strerror or error)
            return []
        if not folder:
            self.read_error = ""
        return files

    def write(self, header: SpoolHeader, body: BodyFactory) -> Path:
        """Writes one file durably and returns its path. Calls `body` again if the folder was taken over meanwhile.

        Raises SpoolFullError, or OSError if the disk fails. An incomplete file never has its final name.
        """
        folder = self._open_folder()
        try:
            return self._write(folder, header, body)
        except FileNotFoundError:
            if folder.exists():
                raise  # a file that the body reads is missing
            with self._lock:
                if self.folder == folder:  # else the heartbeat has noticed it first
                    self.folder, self._used_bytes = None, 0
            return self._write(self._open_folder(), header, body)

    def _open_folder(self) -> Path:
        if self.folder is None:
            self.root.mkdir(parents=True, exist_ok=True)
            prepared = self.root / f".new-{uuid.uuid4().hex[:12]}"
            prepared.mkdir(mode=0o700)
            name = self.name if not (self.root / self.name).exists() else f"{self.name}-{uuid.uuid4().hex[:8]}"
            try:
                lease.acquire_lease(prepared, self.url, self.name, self.attempt)
                _write_reserve(prepared / RESERVE_FILE)
                self.folder = prepared.rename(self.root / name)
            except OSError:
                remove_spool_folder(prepared)
                raise
        return self.folder

    def _write(self, folder: Path, header: SpoolHeader, body: BodyFactory) -> Path:
        kind = header["kind"]
        self._last_time_ns = max(time.time_ns(), self._last_time_ns + 1)
        path = folder / f"{self._last_time_ns:020d}.{kind}"
        temporary = folder / f".{path.name}"
        # The files that open and end a run are small and must never be missing.
        free_bytes = self.limit - self._used_bytes if kind in ("dump", "metrics") else self.limit
        try:
            size = self._write_temporary(temporary, {**header, "dropped": dict(self.dropped)}, body, free_bytes)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(folder)
        with self._lock:
            self._used_bytes += size
        return path

    def _write_temporary(self, path: Path, header: SpoolHeader, body: BodyFactory, free_bytes: int) -> int:
        """Returns the file's size. On a full disk, the end of the run is written into the reserved space."""
        try:
            return _write_file(path, header, body, free_bytes)
        except OSError as error:
            if header["kind"] != "finish" or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            path.unlink(missing_ok=True)
            path.with_name(RESERVE_FILE).rename(path)
            return _write_file(path, header, body, RESERVED_BYTES, mode="r+b")

    def count_dropped(self, reason: object, count: object = 1) -> None:
        """Counts data that could not be stored.

        A trainer may pass any objects. All are counted as texts and numbers of JSON, which every header contains:
        `reason` as a cleaned text, and `count` as 1 if it is no number.
        """
        number, text = _parse_count(count), clean_name(reason, MAX_REASON_CHARS) or type(reason).__name__
        with self._lock:
            if not number:
                return
            if text not in self.dropped and len(self.dropped) >= MAX_REASONS:
                label = next((label for label in (SAMPLES_LABEL, FILES_LABEL) if text.startswith(label)), "")
                text = f"{label}other reasons"
            self.dropped[text] += number

    def mark_sent(self, file: SpoolFile) -> None:
        """Subtracts the bytes of a file that was uploaded and removed."""
        with self._lock:
            self._used_bytes = max(0, self._used_bytes - file.size)

    def renew_lease(self) -> None:
        """Renews the lease. If another process took the folder over, this process stops using it."""
        folder = self.folder
        if folder and not lease.renew_lease(folder):
            with self._lock:
                if self.folder == folder:
                    self.folder, self._used_bytes = None, 0

    def close(self) -> int:
        """Releases the folder, or removes it if it is empty. Returns how many files wait in it."""
        folder, remaining = self.folder, len(self.list_files())
        if folder and remaining:
            lease.release_lease(folder)
        elif folder:
            remove_spool_folder(folder)
        return remaining


def _parse_count(count: Any) -> int:
    try:
        return min(max(0, int(count)), MAX_COUNT)
    except Exception:  # objects of other libraries may raise anything
        return 1


def _write_reserve(path: Path) -> None:
    """Writes a file of real blocks: a file system may store zeros without any."""
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), os.urandom(RESERVED_BYTES))
        os.fsync(file.fileno())


def _write_file(path: Path, header: SpoolHeader, body: BodyFactory, free_bytes: int, mode: str = "wb") -> int:
    """Writes the body, then the header with its hash into the space in front of it. Returns the file's size."""
    placeholder = json.dumps({**header, "sha256": "0" * 64, "bytes": 10**15})
    header_bytes = len(placeholder.encode()) + 1
    digest, size = hashlib.sha256(), 0
    with path.open(mode, buffering=0) as file:
        file.seek(header_bytes)
        for chunk in body():
            size += len(chunk)
            if header_bytes + size > free_bytes:
                raise SpoolFullError
            digest.update(chunk)
            _write_all(file.fileno(), chunk)
        line = json.dumps({**header, "sha256": digest.hexdigest(), "bytes": size}).encode()
        file.seek(0)
        _write_all(file.fileno(), line.ljust(header_bytes - 1) + b"\n")
        file.truncate(header_bytes + size)
        os.fsync(file.fileno())
    return header_bytes + size


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.write(descriptor, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    """Makes the rename durable. File systems that do not support it are ignored."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_file_chunks(path: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """Yields the bytes of a file, up to its length at the call."""
    with path.open("rb") as file:
        remaining = os.fstat(file.fileno()).st_size
        while remaining > 0 and (chunk := file.read(min(size, remaining))):
            remaining -= len(chunk)
            yield chunk
