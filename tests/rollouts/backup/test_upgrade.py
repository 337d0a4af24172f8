"""An upgrade of SQLite whose copy is removed, and two at once. tests/test_upgrade.py upgrades a real data folder."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from django.core.management.base import OutputWrapper
from django.db import connection

from rollouts.backup import upgrade

pytestmark = pytest.mark.one_database


def test_an_upgrade_that_loses_its_copy_leaves_the_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db.sqlite3"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE thing (id)")
    monkeypatch.setitem(connection.settings_dict, "NAME", str(path))
    monkeypatch.setattr(upgrade, "apply_migrations", lambda **_: (tmp_path / ".db.sqlite3.upgrade").unlink())
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        upgrade.migrate_sqlite_copy(OutputWrapper(StringIO()))
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("thing",)]


def test_an_upgrade_waits_until_another_one_has_ended() -> None:
    entered: list[int] = []

    def lock_and_record() -> None:
        with upgrade.lock_sqlite_upgrade():
            entered.append(1)

    thread = threading.Thread(target=lock_and_record)
    with upgrade.lock_sqlite_upgrade():
        thread.start()
        thread.join(0.2)
        assert entered == []
    thread.join(10)
    assert entered == [1]
