"""A move to PostgreSQL: every row of the embedded database, as it is, into the empty one that DATABASE_URL names."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style
from django.db import DatabaseError, connection, connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model
from django.db.models.fields import Field

from rolloutdeck.up import ServerPaths, StartRefusedError, acquire_data_lock, find_server_folder

OLD = "old"
ROWS = 5000


class Command(BaseCommand):
    help = "Copy all rows of an SQLite database of Rolloutdeck into the empty database that DATABASE_URL names."

    def add_arguments(self, parser: ArgumentParser) -> None:
        kept = settings.DATA_DIR / "db.sqlite3"
        parser.add_argument("path", nargs="?", type=Path, default=kept, help="default: db.sqlite3 of the data folder")

    def handle(self, *args: Any, path: Path, **options: Any) -> None:
        if not path.is_file():
            raise CommandError(f"There is no file {path}.")
        if Path(connection.settings_dict["NAME"]).absolute() == path.absolute():
            raise CommandError("DATABASE_URL names no other database; set it to the one to copy into.")
        try:
            lock(path.absolute().parent)
            call_command("migrate", interactive=False, stdout=self.stderr)
            rows = copy(path)
        except StartRefusedError as error:
            raise CommandError(str(error)) from error
        except DatabaseError as error:
            raise CommandError(f"The databases refuse, nothing was copied: {str(error).strip()}") from error
        self.stdout.write(f"{rows:,} rows are copied; the files of the data folder stay as they are.")


def lock(data: Path) -> None:
    """Keeps `up` off the data folder until this process ends. Raises StartRefusedError when one runs there."""
    places = ServerPaths(data=data, server=find_server_folder(), sockets=data)
    if places.run.is_dir():
        acquire_data_lock(places)


def copy(path: Path) -> int:
    """All rows or none; how many. Raises CommandError, DatabaseError."""
    connections.settings[OLD] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {},
    }
    if MigrationRecorder(connections[OLD]).applied_migrations().keys() != applied():
        raise CommandError(f"{path} belongs to another version; start this version's `rolloutdeck up` on it once.")
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    with transaction.atomic(using=OLD), transaction.atomic():
        for model in reversed(models):
            make_room(model)
        count = sum(copy_rows(model) for model in models)
        with connection.cursor() as cursor:
            for statement in connection.ops.sequence_reset_sql(no_style(), models):
                cursor.execute(statement)
    return count


def applied() -> set[tuple[str, str]]:
    return set(MigrationRecorder(connection).applied_migrations())


def make_room(model: type[Model]) -> None:
    """Takes away what `migrate` itself has just made. Raises CommandError when there is more."""
    rows = model._base_manager.all()
    if model._meta.app_label == "contenttypes" or model._meta.label == "auth.Permission":
        rows.delete()
    elif rows.exists():
        what = model._meta.verbose_name_plural
        raise CommandError(f"The database of DATABASE_URL is not empty, it has {what}; name a new one.")


def copy_rows(model: type[Model]) -> int:
    """The rows with their keys and times; `bulk_create` would set the times anew."""
    fields: list[Field[Any, Any]] = list(model._meta.concrete_fields)
    quote = connection.ops.quote_name
    columns, marks = ", ".join(quote(str(field.column)) for field in fields), ", ".join(["%s"] * len(fields))
    statement = f"INSERT INTO {quote(model._meta.db_table)} ({columns}) VALUES ({marks})"  # noqa: S608  our names
    every, count = prepared(model, fields), 0
    with connection.cursor() as cursor:
        while part := list(islice(every, ROWS)):
            cursor.executemany(statement, part)
            count += len(part)
    return count


def prepared(model: type[Model], fields: list[Field[Any, Any]]) -> Iterator[list[Any]]:
    rows = model._base_manager.using(OLD).order_by("pk").values_list(*(field.attname for field in fields))
    for row in rows.iterator(chunk_size=ROWS):
        yield [field.get_db_prep_save(value, connection) for field, value in zip(fields, row, strict=True)]
