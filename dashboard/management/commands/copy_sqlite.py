"""Moves to PostgreSQL: copies every row of the embedded database into the empty database of DATABASE_URL."""

from argparse import ArgumentParser
from itertools import islice
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style
from django.db import DatabaseError, connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model
from django.db.models.fields import Field

from rolloutdeck.up import ServerPaths, StartRefusedError, acquire_data_lock, find_server_folder
from rollouts.backup import apply_migrations
from rollouts.storage import load_location, own_data_folder, read_owner

OLD = "old"  # alias of the SQLite database
BATCH_ROWS = 5000


class Command(BaseCommand):
    help = "Copy all rows of an SQLite database of Rolloutdeck into the empty database that DATABASE_URL names."

    def add_arguments(self, parser: ArgumentParser) -> None:
        default = settings.DATA_DIR / "db.sqlite3"
        parser.add_argument(
            "path", nargs="?", type=Path, default=default, help="default: db.sqlite3 of the data folder"
        )

    def handle(self, *args: Any, path: Path, **options: Any) -> None:
        if not path.is_file():
            raise CommandError(f"There is no file {path}.")
        if Path(connection.settings_dict["NAME"]).absolute() == path.absolute():
            raise CommandError("DATABASE_URL names the same database. Set it to the database to copy into.")
        try:
            folder = path.absolute().parent
            paths = ServerPaths(data=folder, server=find_server_folder(), sockets=folder)
            if paths.run.is_dir():  # `up` cannot start in the data folder before this process ends
                acquire_data_lock(paths)
            apply_migrations(stdout=self.stderr)
            count = copy_database(path)
        except StartRefusedError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"The database failed, nothing was copied: {str(error).strip()}") from error
        self.stdout.write(f"{count:,} rows were copied. The stored files of the data folder are unchanged.")
        is_own = path.resolve() == (settings.DATA_DIR / "db.sqlite3").resolve()
        server = load_location().server
        try:
            if read_owner() == f"{server} sqlite" or (is_own and not read_owner()):
                own_data_folder(server)
            if is_own:
                connections[OLD].close()  # writes its log into the file
                moved = put_aside(path)
                self.stdout.write(f"{path} is {moved.name} now, so a start without DATABASE_URL does not use its rows.")
        except OSError as error:
            raise CommandError(
                f"The rows were copied, but {error.filename} could not be changed: {error.strerror}. Rename {path} and "
                f"remove {settings.DATA_DIR / 'server'} yourself."
            ) from error


def put_aside(path: Path) -> Path:
    """Renames an SQLite database. Returns the new path."""
    moved = path.with_name(f"{path.name}.moved")
    for suffix in ("-wal", "-shm", ""):
        if (file := Path(f"{path}{suffix}")).exists():
            file.replace(f"{moved}{suffix}")
    return moved


def copy_database(path: Path) -> int:
    """Copies all rows or none. Returns their number. Raises CommandError, DatabaseError."""
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": path, "OPTIONS": {}}
    connections.settings[OLD] = {**connections.settings["default"], **sqlite}
    old, new = (set(MigrationRecorder(connections[alias]).applied_migrations()) for alias in (OLD, "default"))
    if old != new:
        raise CommandError(f"{path} has another version. Start this version's `rolloutdeck up` on it once.")
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    with transaction.atomic(using=OLD), transaction.atomic():
        for model in reversed(models):
            clear_table(model)
        count = sum(copy_rows(model) for model in models)
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), models):
                cursor.execute(statement)
    return count


def clear_table(model: type[Model]) -> None:
    """Deletes the rows that came with the tables. Raises CommandError if there are others."""
    rows = model._base_manager.all()
    if model._meta.app_label == "contenttypes" or model._meta.label == "auth.Permission":
        rows.delete()
    elif rows.exists():
        what = model._meta.verbose_name_plural
        raise CommandError(f"The database of DATABASE_URL is not empty, it has {what}. Name a new one.")


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
            cursor.executemany(statement, batch)
            count += len(batch)
    return count
