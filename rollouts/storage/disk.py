"""Stores files in a local folder, the data folder by default.

Every file is written under a temporary name and renamed, so a reader sees complete files only.
"""

import errno
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from rollouts.storage.files import create_parents, rename_durably
from rollouts.storage.keys import KINDS
from rollouts.storage.store import StoredFile
from rollouts.telemetry import STORAGE_SECONDS

# Of file systems without hard links, and of a file with too many.
NO_LINK_ERRORS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class DiskStore:
    """A store below `root`."""

    root: Path
    url: str = ""

    @contextmanager
    def write(self, key: str, *, is_derived: bool = False) -> Iterator[Path]:
        target = self.root / key
        if is_derived:
            with write_in_place(target):
                yield target
            return
        started, new_folders = perf_counter(), create_parents(target)
        temporary = target.with_name(f".{target.name}.{uuid4().hex[:8]}")
        try:
            yield temporary
            if temporary.exists():
                rename_durably(temporary, target, new_folders)
                STORAGE_SECONDS.labels(key.partition("/")[0]).observe(perf_counter() - started)
        finally:
            temporary.unlink(missing_ok=True)

    def put(self, path: Path, key: str) -> None:
        target = self.root / key
        rename_durably(path, target, create_parents(target))

    def add_copy(self, path: Path, key: str) -> None:
        with self.write(key) as temporary:
            shutil.copyfile(path, temporary)

    def fetch(self, key: str) -> Path:
        path = self.root / key
        path.stat()
        return path

    @contextmanager
    def checkout(self, key: str) -> Iterator[Path]:
        yield self.root / key

    def find(self, key: str) -> StoredFile | None:
        try:
            status = (self.root / key).stat()
        except FileNotFoundError:
            return None
        return StoredFile(key, status.st_size, status.st_mtime)

    def measure(self, keys: Collection[str], prefix: str) -> dict[str, int]:
        found = (self.find(key) for key in keys)
        return {file.key: file.bytes for file in found if file}

    def touch(self, key: str) -> bool:
        try:
            os.utime(self.root / key)
        except FileNotFoundError:
            return False
        return True

    def copy(self, source: str, target: str) -> None:
        with self.write(target) as temporary:
            try:
                os.link(self.root / source, temporary)
            except OSError as error:
                if error.errno not in NO_LINK_ERRORS:
                    raise
                shutil.copyfile(self.root / source, temporary)

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)

    def delete_all(self, prefix: str) -> None:
        shutil.rmtree(self.root / prefix, ignore_errors=True)

    def list_files(self, prefix: str) -> Iterator[StoredFile]:
        """Skips files that are removed meanwhile."""
        for folder in [self.root / prefix] if prefix else [self.root / kind for kind in KINDS]:
            for path in folder.rglob("*"):
                try:
                    if path.is_file():
                        status = path.stat()
                        yield StoredFile(path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime)
                except FileNotFoundError:
                    continue

    def list_folders(self, prefix: str) -> list[str]:
        folder = self.root / prefix
        return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


@contextmanager
def write_in_place(target: Path) -> Iterator[None]:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        target.unlink(missing_ok=True)
        raise
