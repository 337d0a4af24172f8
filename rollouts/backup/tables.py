"""Creates the tables of a new database, and changes those of an older version."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from django.apps import apps
from django.core.management import call_command
from django.core.management.sql import emit_post_migrate_signal
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor

from rollouts.backup.database import get_engine, is_database_empty

TABLES_LOCK: Final = 0x726F6C6C  # any number that no other program of the database uses


def apply_migrations(**options: Any) -> None:
    """Brings the tables to this version; on PostgreSQL in one transaction, and one process after the other. `options`
    are those of `migrate`."""
    with lock_tables() if get_engine() == "postgresql" else nullcontext():
        if is_database_empty():
            create_tables()
        elif has_pending_migrations():
            with transaction.atomic() if get_engine() == "postgresql" else nullcontext():
                call_command("migrate", interactive=False, **options)


@contextmanager
def lock_tables() -> Iterator[None]:
    """Waits until no other process changes the tables: an orchestrator may start several at once."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", [TABLES_LOCK])
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [TABLES_LOCK])


def has_pending_migrations() -> bool:
    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def create_tables() -> None:
    """Creates all tables of an empty database from the models, and records all migrations, in one transaction.

    The result is that of `migrate`, which takes several times as long: it renders the models again for each migration.
    """
    executor = MigrationExecutor(connection)
    models = [model for model in apps.get_models() if model._meta.app_label in executor.loader.migrated_apps]
    with connection.schema_editor() as editor:
        editor.create_model(executor.recorder.Migration)
        for model in models:
            if model._meta.can_migrate(connection):
                editor.create_model(model)
        for migration, _backwards in executor.migration_plan(executor.loader.graph.leaf_nodes()):
            executor.recorder.record_applied(migration.app_label, migration.name)
        emit_post_migrate_signal(verbosity=0, interactive=False, db=connection.alias)
