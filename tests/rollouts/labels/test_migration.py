"""The migration to labels keeps flags, OK marks and their undo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

ARCHIVE = Path(__file__).parents[2] / "data" / "versions" / "0.2.0.tar.gz"
PROGRAM = Path(__file__).with_name("migrate_flags.py")
OWN = {"author": "小明", "source": "human", "rationale": "", "withdrawn": ""}
FLAG = {"sample": "a", "name": "flag.reward-hack", "value": "bad", "answer": " bad ", "rationale": "猜的"}
OK = {"name": "review", "value": "ok", "answer": " ok "}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The address of a database that an earlier version wrote; on PostgreSQL of an empty one."""
    if connection.vendor == "sqlite":
        with tarfile.open(ARCHIVE) as archive:
            archive.extract("db.sqlite3", tmp_path, filter="data")
        yield f"sqlite:///{tmp_path / 'db.sqlite3'}"
        return
    import psycopg

    settings = connection.settings_dict
    address = f"postgres://{settings['USER']}@/{settings['HOST']}/"
    parameters = {"host": settings["HOST"], "user": settings["USER"], "dbname": "postgres", "autocommit": True}
    name = f"{settings['NAME']}_labels"
    with psycopg.connect(**parameters) as server:
        server.execute(f'CREATE DATABASE "{name}"')
        yield address + name
        server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.django_db
def test_flags_and_ok_marks_become_labels_that_can_be_undone(database: str, tmp_path: Path) -> None:
    environment = os.environ | {"DATABASE_URL": database, "ROLLOUTDECK_DATA": str(tmp_path)}
    root = Path(__file__).parents[3]
    environment |= {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "PYTHONPATH": str(root)}
    result = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    written: dict[str, Any] = json.loads(result.stdout)
    flagged = [
        OWN | FLAG | {"created": "flagged", "updated": "changed"},
        OWN | {"sample": "b", "name": "flag", "value": "unsure", "answer": " unsure ", "created": "flagged",
               "updated": "changed", "withdrawn": "changed"},
    ]  # fmt: skip
    approved = [
        OWN | OK | {"sample": "b", "created": "long ago", "updated": "long ago"},
        OWN | OK | {"sample": "c", "created": "ok", "updated": "ok"},
    ]
    assert written["labels"] == [*flagged, *approved]
    assert written["viewed"] == ["a", "b", "c", "gone"]

    first, second = written["undone"]
    assert (first["description"], first["restored"]) == ("“OK” on 1 sample", 1)
    assert [row["value"] for row in first["labels"] if row["withdrawn"] or row["updated"] == ""] == ["unsure", "ok"]
    assert (second["description"], second["restored"]) == ("old", 1)
    before = {"value": "good", "answer": " good ", "rationale": "before", "created": "flagged", "updated": "flagged"}
    assert second["labels"][0] == OWN | FLAG | before
