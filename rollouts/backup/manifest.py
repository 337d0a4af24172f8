"""The manifest of a backup, and the folders of a backup destination.

DIR/lock                         held by a backup or a restore
DIR/files/raw/…, bodies/…, …     the files of all backups, under their paths in the data folder
DIR/20261123T231500Z/            one backup: the database and manifest.json
DIR/20261123T231500Z.partial/    one that did not finish
"""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any

from rolloutdeck.lib import try_lock
from rolloutdeck.up import MANIFEST_NAME, PARTIAL_SUFFIX, list_backup_names
from rollouts.backup.errors import BackupError

FORMAT = 1
POOL_NAME = "files"


@dataclass(slots=True)
class Manifest:
    """What a backup contains. `migrations` are "app.name", `rows` the number of rows of each table.

    `files` maps a path in the data folder to [bytes, sha256]. `missing` are files that rows of the backup refer to and
    that the server had lost before. `forgotten` lists what was removed from the backup later.
    """

    name: str
    version: str
    created_at: str
    finished_at: str
    engine: str
    database: str
    database_bytes: int
    database_sha256: str
    migrations: list[str]
    rows: dict[str, int]
    files: dict[str, tuple[int, str]]
    missing: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        return self.database_bytes + sum(size for size, _ in self.files.values())


def read_manifest(folder: Path) -> Manifest:
    """Raises BackupError if there is none, or a newer version wrote it."""
    try:
        values: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
        written_format = int(values["format"])
    except FileNotFoundError:
        raise BackupError(f"{folder} has no {MANIFEST_NAME}, so it is not a finished backup.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{folder / MANIFEST_NAME} is damaged: {error}.") from error
    if written_format > FORMAT:
        made_by = f"Rolloutdeck {values.get('version')}, which is newer than this version"
        raise BackupError(f"{folder} was made by {made_by}. Use that version or a newer one.")
    files = {name: (int(size), str(digest)) for name, (size, digest) in values.pop("files").items()}
    return Manifest(**values, files=files)


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Replaces the manifest in one step. The file survives a power cut."""
    temporary = folder / f".{MANIFEST_NAME}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(manifest), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_NAME)


def iterate_backups(destination: Path) -> Iterator[Manifest]:
    """Yields the finished backups, oldest first. Each has the names of all files, so they are read one by one. Raises
    BackupError."""
    return (read_manifest(destination / name) for name in list_backup_names(destination))


@contextmanager
def lock_destination(destination: Path) -> Iterator[None]:
    """Raises BackupError if another backup or restore uses the folder."""
    handle = open_lock_file(destination)
    try:
        if try_lock(handle) is False:
            raise BackupError(f"Another command uses {destination}. Wait until it has ended.")
        yield
    finally:
        os.close(handle)


def open_lock_file(destination: Path) -> int:
    """A restore may read from a copy that nobody can write."""
    path = destination / "lock"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return os.open(path if path.exists() else destination, os.O_RDONLY)


def remove_backup(destination: Path, name: str) -> None:
    """Removes a backup. Its files remain in the pool until `clean_pool`."""
    partial = destination / f"{name}{PARTIAL_SUFFIX}"
    (destination / name).replace(partial)  # a half removed folder is no backup
    shutil.rmtree(partial)


def clean_pool(destination: Path) -> int:
    """Removes files that no backup names. Returns their number."""
    named = {name for manifest in iterate_backups(destination) for name in manifest.files}
    pool, removed = destination / POOL_NAME, 0
    for path in pool.rglob("*"):
        if path.is_file() and path.relative_to(pool).as_posix() not in named:
            path.unlink()
            removed += 1
    return removed


def compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
