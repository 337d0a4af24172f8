"""Copies every row of an SQLite database into the empty PostgreSQL database of the settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model
from django.db.models.fields import Field

from rollouts.backup.database import count_rows, get_engine, list_migrations
from rollouts.backup.errors import BackupError
from rollouts.backup.tables import apply_migrations
from rollouts.backup.upgrade import check_connection, check_data_version

OLD = "old"  # alias of the SQLite database
BATCH_ROWS = 5000
# Rows that come with the tables, or with a start that was refused before the copy.
INITIAL_TABLES = {"django_content_type", "auth_permission", "rollouts_storagelocation"}


def copy_to_postgres(path: Path, log: OutputWrapper) -> int:
    """Copies all rows of `path` in one transaction, and checks their number. Returns it. The rows of `path` stay.

    Raises BackupError, UpgradeError and DatabaseError; then nothing was copied.
    """
    if get_engine() != "postgresql":
        raise BackupError("Set DATABASE_URL to an empty PostgreSQL database, for example postgres://user@host/name.")
    if not path.is_file():
        raise BackupError(f"There is no SQLite database {path}.")
    check_connection()
    check_data_version()
    check_target_is_empty()
    with open_source(path):
        apply_migrations(stdout=log)
        if list_migrations(OLD) != list_migrations("default"):
            raise BackupError(
                f"{path} is of another version. Start it once with this version, without DATABASE_URL: it is upgraded."
            )
        return copy_all_rows()


def list_models() -> list[type[Model]]:
    return [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]


def check_target_is_empty() -> None:
    """Raises BackupError if the database has tables of another program, or rows. Writes nothing."""
    own = {model._meta.db_table for model in list_models()}
    present = set(connection.introspection.table_names()) - {MigrationRecorder.Migration._meta.db_table}
    if others := sorted(present - own):
        raise BackupError(
            f"The database of DATABASE_URL has tables of another program, such as {others[0]}. Create a new database."
        )
    with connection.cursor() as cursor:
        for table in sorted(present - INITIAL_TABLES):
            cursor.execute(f"SELECT EXISTS(SELECT 1 FROM {connection.ops.quote_name(table)})")  # noqa: S608  our names
            if cursor.fetchone()[0]:
                raise BackupError(
                    f"The database of DATABASE_URL is not empty: {table} has rows. Nothing was copied. Create a new "
                    "database."
                )


@contextmanager
def open_source(path: Path) -> Iterator[None]:
    """Opens the SQLite database so that no other process can read or write it. Raises BackupError if one has it open:
    what that one writes later would not be copied."""
    options = {
        "init_command": "PRAGMA locking_mode=EXCLUSIVE",
        "transaction_mode": "EXCLUSIVE",
        "timeout": 5,
    }
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}
    connections.settings[OLD] = {**connections.settings["default"], **sqlite}
    try:
        try:
            with transaction.atomic(using=OLD):
                pass
        except OperationalError as error:
            raise BackupError(
                f"Another process uses {path} ({error}). Stop the server, all web processes and workers, then run "
                "the command again."
            ) from error
        yield
    finally:
        connections[OLD].close()  # writes the log of SQLite into the file
        del connections[OLD]
        del connections.settings[OLD]


def copy_all_rows() -> int:
    models = list_models()
    with transaction.atomic(using=OLD), transaction.atomic():
        for model in reversed(models):
            if model._meta.db_table in INITIAL_TABLES:
                model._base_manager.all().delete()
        count = sum(copy_rows(model) for model in models)
        expected, actual = count_rows(OLD), count_rows("default")
        if different := [table for table in expected if expected[table] != actual[table]]:
            raise BackupError(
                f"Nothing was copied: in PostgreSQL these tables got another number of rows: {', '.join(different)}."
            )
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), models):
                cursor.execute(statement)
    return count


def copy_rows(model: type[Model]) -> int:
    """Copies the rows with their keys and times; `bulk_create` would set the times again. Returns their number."""
    fields: list[Field[Any, Any]] = list(model._meta.concrete_fields)
    quote = connection.ops.quote_name
    columns, marks = ", ".join(quote(str(field.column)) for field in fields), ", ".join(["%s"] * len(fields))
    statement = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"  # noqa: S608  our own names
    old = model._base_manager.using(OLD).order_by("pk").values_list(*(field.attname for field in fields))
    rows = (
        [field.get_db_prep_save(value, connection) for field, value in zip(fields, row, strict=True)]
        for row in old.iterator(chunk_size=BATCH_ROWS)
    )
    count = 0
    with connection.cursor() as cursor:
        while batch := list(islice(rows, BATCH_ROWS)):
            try:
                cursor.executemany(statement, batch)
            except DatabaseError as error:
                place = f"rows {count + 1:,} to {count + len(batch):,} of {model._meta.db_table}, ordered by their key"
                raise BackupError(f"Nothing was copied: PostgreSQL refuses one of the {place}: {error}.") from error
            count += len(batch)
    return count
