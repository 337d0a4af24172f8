"""An upgrade that fails changes nothing; tables of a newer version are refused. On a data folder of version 0.1.0."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import environ
import psycopg
import pytest
from django.db.migrations.loader import MigrationLoader

from rolloutdeck.lib import read_version
from rollouts.lib import find_unknown_migrations
from tests.test_move_to_postgres import postgres  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "tests/data/versions/0.1.0.tar.gz"
LATER = ("rollouts", "9999_later", "2030-01-01")
FAILING = """
from django.db import migrations, models

def fail(apps, schema_editor):
    raise ValueError("the disk is on fire")

class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel("Thing", [("id", models.AutoField(primary_key=True))]),
        migrations.RunPython(fail),
    ]
"""


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def run_manage_command(
    data_folder: Path, *words: str, failing: bool = False, database_url: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a command of manage.py; `failing` adds a migration that fails after it has created a table."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTDECK_", "DATABASE"))}
    environment = {**plain, "ROLLOUTDECK_DATA": str(data_folder), "PYTHONPATH": f"{data_folder.parent}:{ROOT}"}
    if database_url:
        environment["DATABASE_URL"] = database_url
    if failing:
        migrations = data_folder.parent / "late_app" / "migrations"
        migrations.mkdir(parents=True, exist_ok=True)
        for name, text in {"../__init__.py": "", "__init__.py": "", "0001_initial.py": FAILING}.items():
            (migrations / name).write_text(text)
        (data_folder.parent / "late_settings.py").write_text(
            "from dashboard.settings import *\nINSTALLED_APPS = [*INSTALLED_APPS, 'late_app']\n"
        )
        environment["DJANGO_SETTINGS_MODULE"] = "late_settings"
    command = [sys.executable, str(ROOT / "manage.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)


def dump_database(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def read_tables(path: Path) -> set[str]:
    """Columns, constraints and indexes. A changed table has its columns in another order."""
    found = set()
    with closing(sqlite3.connect(path)) as database:
        for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
            start, _, definitions = sql.removesuffix(")").partition("(")
            found |= {f"{name}: {start} {definition}" for definition in re.split(r', (?=[A-Z"])', definitions)}
    return found


def read_postgres_tables(database_url: str) -> set[str]:
    """The same for PostgreSQL, and the number of rows. A renamed table has constraints with old names."""
    address = environ.Env.db_url_config(database_url)
    server = {"host": address["HOST"], "user": address["USER"], "dbname": address["NAME"]}
    with psycopg.connect(**server) as connection:
        tables = [row[0] for row in connection.execute("SELECT relname FROM pg_stat_user_tables")]
        counts = {connection.execute(f'SELECT %s, count(*) FROM "{name}"', [name]).fetchone() for name in tables}
        rest = connection.execute("""
            SELECT table_name, column_name, data_type, character_maximum_length,
                is_nullable, column_default, is_identity
            FROM information_schema.columns WHERE table_schema = 'public'
            UNION ALL SELECT conrelid::regclass::text, pg_get_constraintdef(oid), contype::text, 0, '', '', ''
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
            UNION ALL SELECT tablename, regexp_replace(indexdef, 'INDEX \\S+', ''), 'index', 0, '', '', ''
            FROM pg_indexes WHERE schemaname = 'public'
        """).fetchall()
    return {str(row) for row in [*counts, *rest]}


@pytest.mark.slow
def test_a_new_postgresql_database_has_the_tables_and_rows_that_migrate_makes(
    postgres: str,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    code = "from rollouts.backup import apply_migrations; apply_migrations(verbosity=0)"
    address = environ.Env.db_url_config(postgres)
    server = {"host": address["HOST"], "user": address["USER"], "dbname": address["NAME"]}
    with psycopg.connect(**server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated TEMPLATE template0")
    migrated = postgres.rpartition("/")[0] + "/migrated"
    for words, database_url in ((["shell", "-c", code], postgres), (["migrate"], migrated)):
        done = run_manage_command(tmp_path / "data", *words, database_url=database_url)
        assert done.returncode == 0, done.stderr
    new, expected = read_postgres_tables(postgres), read_postgres_tables(migrated)
    links = "auth_group_permissions|auth_user_user_permissions|auth_user_groups"  # unused, of Django
    different = [line for line in new ^ expected if not re.match(rf"\('({links})', 'id', '(big)?int", line)]
    assert different == [] and len(new) > 400


@pytest.mark.slow
def test_a_failed_upgrade_changes_nothing_and_the_next_one_keeps_the_old_database(data_folder: Path) -> None:
    database = data_folder / "db.sqlite3"
    before = dump_database(database)

    done = run_manage_command(data_folder, "bootstrap", failing=True)
    assert done.returncode and "nothing was changed: the disk is on fire" in done.stderr
    assert dump_database(database) == before

    with closing(sqlite3.connect(database)) as other:  # such as a server that still runs
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("SELECT count(*) FROM django_migrations").fetchone()
        done = run_manage_command(data_folder, "bootstrap")
        assert done.returncode and "Another process uses" in done.stderr
    assert dump_database(database) == before

    with ThreadPoolExecutor(2) as pool:  # as two web processes of systemd
        both = list(pool.map(lambda _: run_manage_command(data_folder, "prepare_database"), range(2)))
    assert [done.returncode for done in both] == [0, 0], both[0].stderr + both[1].stderr
    assert dump_database(data_folder / f"db.sqlite3.before-{read_version()}") == before
    assert run_manage_command(data_folder.parent / "new", "bootstrap").returncode == 0
    assert read_tables(database) == read_tables(data_folder.parent / "new" / "db.sqlite3")
    assert (data_folder / "version").read_text().strip() == read_version()
    assert [path.name for path in data_folder.glob(".db.sqlite3*")] == []

    with closing(sqlite3.connect(database)) as newer, newer:
        newer.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('rollouts', '9999_later', '2030-01-01')"
        )
    (data_folder / "version").write_text("9.0.0\n")
    upgraded = dump_database(database)
    for command in (["bootstrap"], ["fsck"], ["backup", str(data_folder.parent / "backup")]):
        done = run_manage_command(data_folder, *command)
        assert done.returncode, command
        assert "This data folder was used by Rolloutdeck 9.0.0" in done.stderr
        assert "the database has rollouts.9999_later. Install that version or a newer one." in done.stderr
    assert dump_database(database) == upgraded


@pytest.fixture
def with_migrations(settings: Any) -> None:
    """Turns migrations on, which tests of the database turn off."""
    settings.MIGRATION_MODULES = {}


@pytest.mark.usefixtures("with_migrations")
def test_migrations_of_removed_packages_are_not_those_of_a_newer_version() -> None:
    assert find_unknown_migrations(["old_package.0001_initial", "auth.0001_initial"]) == []
    assert find_unknown_migrations(["rollouts.9999_later"]) == ["rollouts.9999_later"]


@pytest.mark.usefixtures("with_migrations")
def test_all_migrations_fit_into_one_transaction_of_postgres() -> None:
    migrations = MigrationLoader(None).disk_migrations
    assert migrations and [name for name, migration in migrations.items() if not migration.atomic] == []
