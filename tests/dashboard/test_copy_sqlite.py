"""The SQLite file after a move to PostgreSQL. tests/test_move_to_postgres.py moves a real server."""

from __future__ import annotations

from pathlib import Path

from dashboard.management.commands.copy_sqlite import put_aside


def test_a_copied_database_has_another_name_with_its_log(tmp_path: Path) -> None:
    for suffix in ("", "-wal"):
        (tmp_path / f"db.sqlite3{suffix}").touch()
    assert put_aside(tmp_path / "db.sqlite3") == tmp_path / "db.sqlite3.moved"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["db.sqlite3.moved", "db.sqlite3.moved-wal"]
