"""Restores a backup into a new data folder."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from django.conf import settings
from django.db import connection

from rolloutdeck.lib import read_version
from rolloutdeck.up import RESTORE_MARKER, list_backup_names
from rollouts.backup import database
from rollouts.backup.errors import BackupError
from rollouts.backup.manifest import POOL_NAME, Manifest, compute_sha256, lock_destination, read_manifest
from rollouts.lib import find_unknown_migrations
from rollouts.storage import (
    StorageRefusedError,
    checkout_file,
    find_file,
    get_data_root,
    prepare_place,
    set_location,
    write_file,
)

Progress = Callable[[int, int, int], None]  # files done, files in total, bytes copied
COPY_BYTES = 1 << 20
LOCATION_MIGRATION = "rollouts.0030_storage_location"


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """`damaged` are files that the backup has lost or whose bytes changed. They were not restored."""

    manifest: Manifest
    damaged: list[str]


def restore_backup(destination: Path, name: str = "", progress: Progress = lambda *_: None) -> RestoreResult:
    """Restores the backup `name`, default the newest, into the data folder, which has the marker of a restore.

    A killed restore continues when it is called again. Raises BackupError if nothing was restored to the database.
    """
    data = get_data_root()
    marker = data / RESTORE_MARKER
    if not marker.exists():
        raise BackupError(f"{data} is not prepared. Call `rolloutdeck restore`.")
    with lock_destination(destination):
        manifest = select_backup(destination, name)
        check_version(manifest)
        restore_id = marker.read_text(encoding="ascii").strip()
        check_database(manifest, restore_id)
        check_storage_place(manifest, restore_id)
        copy = destination / manifest.name / manifest.database
        if not copy.exists() or compute_sha256(copy) != manifest.database_sha256:
            raise BackupError(f"{copy} is missing or damaged. Restore another backup with --backup NAME.")
        damaged = restore_files(manifest, destination / POOL_NAME, progress)
        load_database(copy, restore_id)
        check_row_counts(manifest)
        if LOCATION_MIGRATION in manifest.migrations:
            set_location(restore_id)
    os.sync()  # without the marker, the files must survive a power failure
    marker.unlink()
    database.remove_restore_mark()  # last: without it, a restore that is called again refuses the database
    return RestoreResult(manifest, damaged)


def select_backup(destination: Path, name: str) -> Manifest:
    names = list_backup_names(destination)
    if not names:
        raise BackupError(f"There is no finished backup in {destination}.")
    if name and name not in names:
        raise BackupError(f"There is no backup {name} in {destination}. It has: {', '.join(names)}.")
    return read_manifest(destination / (name or names[-1]))


def check_version(manifest: Manifest) -> None:
    """Raises BackupError if a newer version made the backup."""
    unknown = find_unknown_migrations(manifest.migrations)
    if unknown:
        message = (
            f"Backup {manifest.name} was made by Rolloutdeck {manifest.version}, which is newer than this version "
            f"({read_version()}): its database has {unknown[-1]}. Install that version or a newer one."
        )
        raise BackupError(message)


def check_database(manifest: Manifest, restore_id: str) -> None:
    """Raises BackupError if the database is of another kind than the backup, or has tables already."""
    engine = database.get_engine()
    if manifest.engine != engine:
        names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        hint = {
            "sqlite": "Restore it without DATABASE_URL, then use `rolloutdeck copy-sqlite`: docs/deployment.md.",
            "postgresql": "Set DATABASE_URL to an empty database.",
        }[manifest.engine]
        message = (
            f"Backup {manifest.name} is of {names[manifest.engine]}, and this is {names.get(engine, engine)}. {hint}"
        )
        raise BackupError(message)
    if engine == "sqlite":
        path = Path(connection.settings_dict["NAME"])
        if path.exists() and not path.resolve().is_relative_to(get_data_root().resolve()):
            raise BackupError(f"{path} exists already. Set DATABASE_URL to a new file, or leave it out.")
    elif not database.has_restored_copy(restore_id) and not database.is_database_empty():
        raise BackupError("The database of DATABASE_URL is not empty. Restore into a new one.")


def check_storage_place(manifest: Manifest, restore_id: str) -> None:
    """Raises BackupError unless this restore may write to the bucket of the settings, if there is one."""
    if not settings.STORAGE_URL:
        return
    if LOCATION_MIGRATION not in manifest.migrations:
        raise BackupError("A backup of a version without buckets is restored without ROLLOUTDECK_STORAGE.")
    try:
        prepare_place(settings.STORAGE_URL, restore_id)
    except StorageRefusedError as error:
        raise BackupError(str(error)) from error


def restore_files(manifest: Manifest, pool: Path, progress: Progress) -> list[str]:
    """Copies the files and verifies their hashes. Returns the names of those that are missing or damaged."""
    damaged, copied = [], 0
    for done, (name, (size, digest)) in enumerate(sorted(manifest.files.items())):
        progress(done, len(manifest.files), copied)
        if is_unsafe_name(name) or not restore_file(pool / name, name, size, digest):
            damaged.append(name)
        copied += size
    progress(len(manifest.files), len(manifest.files), copied)
    return damaged


def is_unsafe_name(name: str) -> bool:
    """Whether a name of a manifest leads out of the data folder."""
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or len(path.parts) < 2


class DamagedCopyError(Exception):
    """The bytes of a file in the backup do not have their hash."""


def restore_file(source: Path, key: str, size: int, digest: str) -> bool:
    """Copies a file and returns whether its bytes have the hash. Otherwise there is no file."""
    if is_restored(key, size, digest):
        return True
    try:
        actual = sha256()
        # Not synced one by one: after a power cut the restore is called again.
        with write_file(key, is_derived=True) as target, source.open("rb") as reader, target.open("wb") as writer:
            while piece := reader.read(COPY_BYTES):
                actual.update(piece)
                writer.write(piece)
            if actual.hexdigest() != digest:
                raise DamagedCopyError
        return True
    except (FileNotFoundError, DamagedCopyError):
        return False


def is_restored(key: str, size: int, digest: str) -> bool:
    file = find_file(key)
    if file is None or file.bytes != size:
        return False
    with checkout_file(key) as path:
        return compute_sha256(path) == digest


def load_database(copy: Path, restore_id: str) -> None:
    if database.get_engine() == "sqlite":
        connection.close()
        target = Path(connection.settings_dict["NAME"])
        for suffix in ("-wal", "-shm"):  # of a restore that was killed after it had placed the database
            Path(f"{target}{suffix}").unlink(missing_ok=True)
        database.load_sqlite_copy(copy, target)
    elif not database.has_restored_copy(restore_id):
        database.load_postgres_copy(copy, restore_id)


def check_row_counts(manifest: Manifest) -> None:
    """Raises BackupError if a table has another number of rows than in the backup."""
    different = []
    with connection.cursor() as cursor:
        for table, expected in manifest.rows.items():
            cursor.execute(f"SELECT count(*) FROM {connection.ops.quote_name(table)}")  # noqa: S608  a quoted name
            if cursor.fetchone()[0] != expected:
                different.append(table)
    if different:
        raise BackupError(f"These tables have another number of rows than in the backup: {', '.join(different)}.")
