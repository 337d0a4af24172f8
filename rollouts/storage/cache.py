"""Copies of a bucket's files on this machine, for readers that need a path. All processes of the machine share them.

A file has its name only when it is complete, and is downloaded once per machine. Above the limit, the files that were
not used for longest are removed, but none that was used in the last 15 minutes: a reader may be about to open it. A
file that is open survives its removal. What nobody used for a day goes too, so that no copy of a deleted file stays.
"""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final
from uuid import uuid4

from rollouts.storage.files import fsync_path

log = logging.getLogger(__name__)

MIN_UNUSED_SECONDS: Final = 15 * 60.0  # longer than any search
MAX_UNUSED_SECONDS: Final = 24 * 3600.0
CHECK_SECONDS: Final = 60.0  # between two looks at the size
UNUSED_CHECK_SECONDS: Final = 3600.0  # between two looks for what nobody used, while no file is added
TEMPORARY_LIFETIME_SECONDS: Final = 3600.0


@dataclass(slots=True)
class FileCache:
    """Files below `root`, at most `max_bytes`."""

    root: Path
    max_bytes: int

    def find(self, key: str) -> Path | None:
        """Returns the path of a complete copy, and marks it as used."""
        path = self.root / key
        try:
            os.utime(path, (time.time(), path.stat().st_mtime))
        except FileNotFoundError:
            return None
        return path

    def fetch(self, key: str, download: Callable[[Path], None]) -> Path:
        """Returns the path of a copy. `download` writes it to the path that it gets, unless there is one."""
        if path := self.find(key):
            return path
        with self.lock(key):
            if path := self.find(key):
                return path
            with self.create_temporary() as temporary:
                download(temporary)
                return self.keep(temporary, key)

    def keep(self, path: Path, key: str) -> Path:
        """Moves a complete file into the cache."""
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        fsync_path(path)  # after a power cut, a file with this name has all of its bytes
        path.replace(target)
        self.find(key)
        self.remove_unused_if_due()
        return target

    @contextmanager
    def create_temporary(self) -> Iterator[Path]:
        """Yields a new path, of which nothing remains unless the file was moved away."""
        folder = self.root / ".new"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Waits for another process that downloads the file. A few keys share a lock, so that locks do not add up."""
        folder = self.root / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        name = blake2b(key.encode(), digest_size=1).hexdigest()
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            with suppress(OSError):  # a file system without locks: the file may be downloaded twice
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def delete_all(self, prefix: str) -> None:
        shutil.rmtree(self.root / prefix, ignore_errors=True)

    def remove_unused_if_due(self, seconds: float = CHECK_SECONDS) -> None:
        """Looks at the files, unless a process of this machine did so within this time."""
        mark = self.root / ".checked"
        with suppress(FileNotFoundError):
            if 0 <= time.time() - mark.stat().st_mtime < seconds:
                return
        mark.touch()
        self.remove_unused()

    def remove_unused(self) -> int:
        """Returns the number of removed files."""
        now, removed = time.time(), 0
        files = sorted(self.list_files())
        total = sum(size for _used_at, size, _path in files)
        for used_at, size, path in files:
            unused = now - used_at
            if unused < MIN_UNUSED_SECONDS or (total <= self.max_bytes and unused < MAX_UNUSED_SECONDS):
                break
            with suppress(OSError):
                path.unlink(missing_ok=True)
            total, removed = total - size, removed + 1
        for path in (self.root / ".new").glob("*"):
            with suppress(FileNotFoundError):
                if now - path.stat().st_mtime > TEMPORARY_LIFETIME_SECONDS:
                    path.unlink(missing_ok=True)
        if total > self.max_bytes:
            log.warning("The cache of files has %s bytes, and all were used in the last 15 minutes.", f"{total:,}")
        return removed

    def list_files(self) -> Iterator[tuple[float, int, Path]]:
        """Yields (time of the last use, bytes, path)."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    if not name.startswith("."):
                        status = path.stat()
                        yield status.st_atime, status.st_size, path
