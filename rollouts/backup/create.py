"""Makes a backup of a running server."""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rolloutdeck.lib import read_version
from rolloutdeck.up import PARTIAL_SUFFIX, list_backup_names
from rollouts.backup import database
from rollouts.backup.errors import BackupError
from rollouts.backup.manifest import (
    POOL_NAME,
    Manifest,
    clean_pool,
    compute_sha256,
    iterate_backups,
    lock_destination,
    remove_backup,
    write_manifest,
)
from rollouts.integrity import FileReference, iterate_references, list_image_files
from rollouts.storage import checkout_file, find_file, forbid_deletion, get_data_root

Progress = Callable[[int, int, int], None]  # files done, files in total, bytes copied
COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BackupResult:
    """`copied` files were new, with `copied_bytes`. `removed` are the names of older backups that were removed."""

    manifest: Manifest
    copied: int
    copied_bytes: int
    removed: list[str]


def create_backup(destination: Path, keep: int = 0, progress: Progress = lambda *_: None) -> BackupResult:
    """Makes a backup in `destination`. Afterwards removes all but the newest `keep` backups; 0 keeps all.

    Only files that no earlier backup has are copied. Raises BackupError and OSError.
    """
    if destination.resolve().is_relative_to(get_data_root().resolve()):
        raise BackupError(f"{destination} is inside the data folder. Choose a folder outside, best on another disk.")
    destination.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_destination(destination):
        remove_partial_backups(destination)
        known = {name: entry for manifest in iterate_backups(destination) for name, entry in manifest.files.items()}
        started = datetime.now(UTC)
        name = choose_name(destination, started)
        partial = destination / f"{name}{PARTIAL_SUFFIX}"
        partial.mkdir(mode=0o700)
        copier = FileCopier(destination / POOL_NAME, known, progress)
        with forbid_deletion():
            with database.take_snapshot(partial) as alias:
                references = [*iterate_references(alias), *list_image_files(alias)]
                rows, migrations = database.count_rows(alias), database.list_migrations(alias)
            copier.copy_all(references)
        engine = database.get_engine()
        database_path = partial / database.FILE_NAMES[engine]
        manifest = Manifest(
            name=name,
            version=read_version(),
            created_at=started.isoformat(timespec="seconds"),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            engine=engine,
            database=database_path.name,
            database_bytes=database_path.stat().st_size,
            database_sha256=compute_sha256(database_path),
            migrations=migrations,
            rows=rows,
            files=copier.files,
            missing=copier.missing,
        )
        os.sync()  # all files are on the disk before the manifest names them
        write_manifest(manifest, partial)
        partial.replace(destination / name)
        removed = remove_old_backups(destination, keep)
        clean_pool(destination)
    return BackupResult(manifest, copier.copied, copier.copied_bytes, removed)


def remove_partial_backups(destination: Path) -> None:
    """Removes the databases of killed backups. Their files in the pool are used again."""
    for folder in destination.glob(f"*{PARTIAL_SUFFIX}"):
        shutil.rmtree(folder)


def choose_name(destination: Path, started: datetime) -> str:
    """Returns a name by the time that sorts after all others."""
    name = started.strftime("%Y%m%dT%H%M%SZ")
    newest = max(list_backup_names(destination), default="")
    if newest < name:
        return name
    base, _, number = newest.partition("-")
    return f"{base}-{int(number or 1) + 1:03}"


def remove_old_backups(destination: Path, keep: int) -> list[str]:
    names = list_backup_names(destination)
    old = names[:-keep] if keep else []
    for name in old:
        remove_backup(destination, name)
    return old


class FileCopier:
    """Copies files into the pool. `known` are the files of earlier backups with their sizes and hashes."""

    def __init__(self, pool: Path, known: dict[str, tuple[int, str]], progress: Progress) -> None:
        self.pool, self.known, self.progress = pool, known, progress
        self.files: dict[str, tuple[int, str]] = {}
        self.missing: list[str] = []
        self.copied = self.copied_bytes = 0

    def copy_all(self, references: Iterable[FileReference]) -> None:
        todo = list(references)
        for done, reference in enumerate(todo):
            self.progress(done, len(todo), self.copied_bytes)
            try:
                self.files[reference.name] = self.copy(reference)
            except FileNotFoundError:  # the server lost it earlier; `fsck` says more
                self.missing.append(reference.name)
        self.progress(len(todo), len(todo), self.copied_bytes)

    def copy(self, reference: FileReference) -> tuple[int, str]:
        """Copies the file unless the pool has it. Returns its size and sha256."""
        stored = find_file(reference.name)
        if stored is None:
            raise FileNotFoundError(reference.name)
        target, size = self.pool / reference.name, stored.bytes
        if target.exists() and target.stat().st_size == size:
            known = self.known.get(reference.name)
            # Without a manifest it is from a backup that was killed.
            return known if known and known[0] == size else (size, compute_sha256(target))
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.copy")
        with checkout_file(reference.name) as path:
            shutil.copyfile(path, temporary)
        digest = compute_sha256(temporary)
        temporary.replace(target)
        self.copied += 1
        self.copied_bytes += size
        return size, digest
