"""Migrates the database to this version so that a failure leaves it as it was, and refuses one of a newer version."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from django.core.management.base import OutputWrapper
from django.db import OperationalError, connection

from rolloutdeck.lib import read_version
from rollouts.backup.database import copy_sqlite_file, get_engine, is_database_empty, list_migrations
from rollouts.backup.tables import apply_migrations, has_pending_migrations
from rollouts.errors import RolloutError
from rollouts.lib import find_unknown_migrations
from rollouts.storage import get_data_root

VERSION_FILE = "version"  # in the data folder: the last version that used it


class UpgradeError(RolloutError):
    """The database cannot be used by this version. It was not changed. The message says why and what to do."""

    code = "upgrade"


def check_connection() -> None:
    """Raises UpgradeError if PostgreSQL does not answer."""
    if get_engine() != "postgresql":
        return
    try:
        connection.ensure_connection()
    except OperationalError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        message = f"The database does not answer: {reason}. Check DATABASE_URL, and whether the database runs."
        raise UpgradeError(message) from error


def check_data_version() -> None:
    """Raises UpgradeError if a newer version has changed the tables."""
    if get_engine() == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        return
    if unknown := find_unknown_migrations(list_migrations("default")):
        message = (
            f"This data folder was used by Rolloutdeck {read_data_version() or 'of a newer version'}, and this is "
            f"{read_version()}: the database has {unknown[-1]}. Install that version or a newer one."
        )
        raise UpgradeError(message)


def migrate_database(log: OutputWrapper) -> None:
    """Creates or changes the tables, all or none, and records the version. Raises UpgradeError.

    SQLite: a copy of older tables is migrated and then replaces the database; the old one stays as
    `<name>.before-<version>`. PostgreSQL: one transaction.
    """
    check_connection()
    with lock_sqlite_upgrade():
        check_data_version()
        try:
            if get_engine() == "postgresql" or is_database_empty():
                apply_migrations(stdout=log)
            elif has_pending_migrations():
                migrate_sqlite_copy(log)
        except UpgradeError:
            raise
        except Exception as error:
            message = (
                f"The database was not upgraded to Rolloutdeck {read_version()}, nothing was changed: {error}. "
                "The version that used it before still works."
            )
            raise UpgradeError(message) from error
        record_data_version()


@contextmanager
def lock_sqlite_upgrade() -> Iterator[None]:
    """Waits until no other process changes the tables of an SQLite database: all use the same name for the copy. Before
    that no connection may be open, since the other process replaces the file. PostgreSQL: see `lock_tables`."""
    if get_engine() != "sqlite":
        yield
        return
    folder = get_data_root() / "run"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "upgrade.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def migrate_sqlite_copy(log: OutputWrapper) -> None:
    path = Path(connection.settings_dict["NAME"])
    copy = path.with_name(f".{path.name}.upgrade")
    connection.close()
    reserve_sqlite_file(path)
    remove_sqlite_files(copy)
    try:
        copy_sqlite_file(path, copy)
        with use_sqlite_file(copy):
            apply_migrations(stdout=log)
        # Without `rw` it would create an empty database if the copy were gone.
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=rw", uri=True)) as migrated:
            migrated.execute("PRAGMA journal_mode=DELETE")  # one file, without a log next to it
        replace_sqlite_file(path, copy)
    finally:
        remove_sqlite_files(copy)


def reserve_sqlite_file(path: Path) -> None:
    """Writes the log into the file. Raises UpgradeError if another process has the database open: what it writes from
    now on would be lost."""
    with closing(sqlite3.connect(path, timeout=5)) as database:
        try:
            mode = database.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
        except sqlite3.OperationalError as error:
            raise UpgradeError(f"Another process uses {path} ({error}). Stop it, then start again.") from error
    if mode != "delete":
        raise UpgradeError(f"Another process uses {path}. Stop it, then start again.")


@contextmanager
def use_sqlite_file(path: Path) -> Iterator[None]:
    """Lets the default connection, which migrations use, read and write another file."""
    name = connection.settings_dict["NAME"]
    connection.settings_dict["NAME"] = str(path)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name


def replace_sqlite_file(path: Path, copy: Path) -> None:
    """Replaces the database by the copy in one step, and keeps the old one. The copy is on the disk before."""
    shutil.copymode(path, copy)
    for written in (copy, path):
        sync(written)
    kept = path.with_name(f"{path.name}.before-{read_version()}")
    kept.unlink(missing_ok=True)
    try:
        kept.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copy2(path, kept)
    copy.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_sqlite_files(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def read_data_version() -> str:
    try:
        return (get_data_root() / VERSION_FILE).read_text(encoding="utf-8").strip()[:40]
    except (OSError, ValueError):
        return ""


def record_data_version() -> None:
    path = get_data_root() / VERSION_FILE
    if read_data_version() != read_version():
        temporary = path.with_name(f".{VERSION_FILE}.new")
        temporary.write_text(f"{read_version()}\n", encoding="utf-8")
        temporary.replace(path)
