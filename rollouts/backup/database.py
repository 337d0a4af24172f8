"""Copies the database at one moment, and loads a copy into an empty one."""

import gzip
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from django.apps import apps
from django.db import connection, connections, transaction
from django.db.backends.postgresql.client import DatabaseClient
from django.db.migrations.recorder import MigrationRecorder

from rolloutdeck.up import end_with_parent
from rollouts.backup.errors import BackupError

SNAPSHOT = "snapshot"  # alias of a copy
STEP_PAGES = 4096
FILE_NAMES = {"sqlite": "database.sqlite3", "postgresql": "database.sql.gz"}
RESTORE_TABLE = "rolloutdeck_restore"
LOCK_NUMBER = 8460
SESSION_TABLES = {"django_session", "rollouts_signinsession"}  # a copy of an older version lacks the second one
END_SESSIONS = "".join(
    f"SELECT 'DELETE FROM public.{table}' WHERE to_regclass('public.{table}') IS NOT NULL \\gexec\n"  # noqa: S608  ours
    for table in sorted(SESSION_TABLES)
)


def get_engine() -> str:
    """Returns "sqlite" or "postgresql"."""
    return connection.vendor


@contextmanager
def take_snapshot(folder: Path) -> Iterator[str]:
    """Copies the database into `folder` and yields the alias of a connection that sees exactly the rows of the copy.

    Raises BackupError.
    """
    with (take_sqlite_snapshot if get_engine() == "sqlite" else take_postgres_snapshot)(folder) as alias:
        yield alias


@contextmanager
def take_sqlite_snapshot(folder: Path) -> Iterator[str]:
    path = folder / FILE_NAMES["sqlite"]
    copy_sqlite_file(Path(connection.settings_dict["NAME"]), path)
    with open_sqlite_copy(path) as alias:
        yield alias


def copy_sqlite_file(source_path: Path, path: Path) -> None:
    """Copies by the online backup API, inside a read transaction: writers continue, and the copy never starts again."""
    uri = f"{source_path.absolute().as_uri()}?mode=rw"
    try:
        source = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None)
    except sqlite3.Error as error:
        raise BackupError(f"The database {source_path} cannot be opened: {error}.") from error
    target = sqlite3.connect(path, isolation_level=None)
    try:
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the transaction begins with the first read
        target.execute("PRAGMA synchronous=OFF")  # the manifest is written after a sync
        source.backup(target, pages=STEP_PAGES)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log next to it
    except sqlite3.Error as error:
        raise BackupError(f"The database cannot be copied to {path}: {error}.") from error
    finally:
        target.close()
        source.close()


@contextmanager
def open_sqlite_copy(path: Path) -> Iterator[str]:
    """Yields the alias of a connection to a copy."""
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {}}
    connections.settings[SNAPSHOT] = {**connections.settings["default"], **settings}
    try:
        yield SNAPSHOT
    finally:
        connections[SNAPSHOT].close()
        del connections[SNAPSHOT]
        del connections.settings[SNAPSHOT]


@contextmanager
def take_postgres_snapshot(folder: Path) -> Iterator[str]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT pg_export_snapshot()")
        snapshot = cursor.fetchone()[0]
        target = folder / FILE_NAMES["postgresql"]
        options = ["--no-owner", "--no-privileges", f"--snapshot={snapshot}", "--compress=6", f"--file={target}"]
        run_postgres_program("pg_dump", options)
        yield "default"


def build_postgres_command(program: str, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """Returns the arguments and the environment for a program of PostgreSQL. Raises BackupError if it is missing."""
    binary = shutil.which(program)
    if binary is None:
        raise BackupError(f"{program} is not on the PATH. Install PostgreSQL's client programs.")
    arguments, variables = DatabaseClient.settings_to_cmd_args_env(connection.settings_dict, [])
    return [binary, *arguments[1:], *options], {**os.environ, **(variables or {})}


def run_postgres_program(program: str, options: list[str]) -> None:
    """Raises BackupError with what the program reports."""
    arguments, env = build_postgres_command(program, options)
    end = partial(end_with_parent, os.getpid())
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, preexec_fn=end)
    if done.returncode:
        raise BackupError(f"{program} failed: {done.stderr.strip()[-2000:]}")


def count_rows(alias: str) -> dict[str, int]:
    """Returns the number of rows of each table. Sessions are not counted: a restore ends them."""
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    tables = {model._meta.db_table: model for model in models if model._meta.db_table not in SESSION_TABLES}
    return {table: tables[table]._base_manager.using(alias).count() for table in sorted(tables)}


def list_migrations(alias: str) -> list[str]:
    applied = MigrationRecorder(connections[alias]).applied_migrations()
    return sorted(f"{app}.{name}" for app, name in applied)


def load_sqlite_copy(path: Path, target: Path) -> None:
    """Places a copy as a new database without sessions. It appears in one step."""
    temporary = target.with_name(f".{target.name}.restore")
    for name in (temporary, Path(f"{temporary}-journal")):
        name.unlink(missing_ok=True)
    shutil.copyfile(path, temporary)
    database = sqlite3.connect(temporary)
    try:
        database.execute("PRAGMA secure_delete=ON")
        with database:
            names = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type='table'")}
            for table in sorted(names & SESSION_TABLES):
                database.execute(f"DELETE FROM {table}")  # noqa: S608  our own name
        problems = [row[0] for row in database.execute("PRAGMA integrity_check(5)") if row[0] != "ok"]
    finally:
        database.close()
    if problems:
        raise BackupError(f"The copy of the database is damaged: {'; '.join(problems)}.")
    temporary.replace(target)


def is_database_empty() -> bool:
    return not connection.introspection.table_names()


def has_restored_copy(restore_id: str) -> bool:
    """Whether a restore with this id has loaded the copy into PostgreSQL before it was killed."""
    if RESTORE_TABLE not in connection.introspection.table_names():
        return False
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id FROM {RESTORE_TABLE}")  # noqa: S608  our own name
        return bool(cursor.fetchone() == (restore_id,))


def load_postgres_copy(path: Path, restore_id: str) -> None:
    """Loads a dump into the empty database without sessions, in one transaction. Raises BackupError."""
    options = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--output=/dev/null"]
    arguments, env = build_postgres_command("psql", options)
    pipe, end = subprocess.PIPE, partial(end_with_parent, os.getpid())
    with subprocess.Popen(
        arguments, env=env, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, preexec_fn=end
    ) as process:
        assert process.stdin and process.stderr
        with suppress(BrokenPipeError), gzip.open(path, "rb") as dump:
            # Not --single-transaction: that commits at the end of the input, also if this process was killed.
            # The lock waits for the rollback of a restore that was killed a moment ago.
            process.stdin.write(f"BEGIN;\nSELECT pg_advisory_xact_lock({LOCK_NUMBER});\n".encode())
            shutil.copyfileobj(dump, process.stdin, 1 << 20)
            # The dump has the mark of a restore that was killed before it had removed it.
            mark = f"\nDROP TABLE IF EXISTS public.{RESTORE_TABLE};\n"
            mark += f"CREATE TABLE public.{RESTORE_TABLE} AS SELECT '{restore_id}'::text AS id;\n"
            process.stdin.write(f"\n{END_SESSIONS}{mark}COMMIT;\n".encode())
        with suppress(BrokenPipeError):
            process.stdin.close()
        message = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise BackupError(f"psql failed, nothing was restored to the database: {message[-2000:]}")


def remove_restore_mark() -> None:
    """Removes the mark of `load_postgres_copy`."""
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {RESTORE_TABLE}")
