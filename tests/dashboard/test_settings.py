"""Settings that come from the environment: length of sessions, Strict-Transport-Security."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from rollouts.backup.database import copy_sqlite_file

SCRIPT = """
import json, sys
from dashboard import settings
print(json.dumps([getattr(settings, name) for name in sys.argv[1:]], default=str))
"""
NAMES = ("SESSION_COOKIE_AGE", "SECURE_HSTS_SECONDS", "SESSION_COOKIE_SECURE")


def read_settings(folder: Path, *wanted: str, **variables: str) -> list[object]:
    names = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
    env = {**names, "ROLLOUTDECK_DATA": str(folder), **variables}
    command = [sys.executable, "-c", SCRIPT, *wanted]
    return json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    ("variables", "read"),
    [
        ({}, [30 * 86_400, 0, False]),
        ({"ROLLOUTDECK_SESSION_DAYS": "0.5", "ROLLOUTDECK_PUBLIC_URL": "https://deck.example"}, [43_200, 0, True]),
        ({"ROLLOUTDECK_HSTS_SECONDS": "600", "ROLLOUTDECK_PUBLIC_URL": "https://deck.example"}, [2_592_000, 600, True]),
        ({"ROLLOUTDECK_HSTS_SECONDS": "600", "ROLLOUTDECK_PUBLIC_URL": "http://deck.example"}, [2_592_000, 0, False]),
    ],
)
def test_the_environment_sets_the_session_and_hsts(
    tmp_path: Path, variables: dict[str, str], read: list[object]
) -> None:
    assert read_settings(tmp_path, *NAMES, **variables) == read


def test_a_public_url_with_an_ipv6_address_is_an_allowed_host(tmp_path: Path) -> None:
    """Django compares it with the Host header, which has brackets."""
    [hosts] = read_settings(tmp_path, "ALLOWED_HOSTS", ROLLOUTDECK_PUBLIC_URL="http://[fd00::1]:8460")
    assert hosts == ["127.0.0.1", "[::1]", "[fd00::1]", "localhost"]


def test_a_session_lasts_as_long_as_the_setting_says(client: Client, mate: User, settings: object) -> None:
    settings.SESSION_COOKIE_AGE = 3600  # type: ignore[attr-defined]
    client.post("/sign-in/", {"username": "mina", "password": "mina-password"})
    assert client.cookies["rolloutdeck_session"]["max-age"] == 3600
    assert 3500 < client.session.get_expiry_age() <= 3600


def test_https_pages_have_the_header_and_http_pages_do_not(settings: object) -> None:
    """The middleware reads the setting when it is created."""
    settings.SECURE_HSTS_SECONDS = 600  # type: ignore[attr-defined]
    assert Client().get("/sign-in/", secure=True).headers["Strict-Transport-Security"] == "max-age=600"
    assert "Strict-Transport-Security" not in Client().get("/sign-in/").headers


@pytest.mark.parametrize("name", ["exp#2", "why?", "100%41", "a b"])
def test_the_database_is_in_the_data_folder_whatever_its_name(tmp_path: Path, name: str) -> None:
    [databases] = read_settings(tmp_path / name, "DATABASES", DATABASE_URL="")
    assert databases["default"]["NAME"] == str(tmp_path / name / "db.sqlite3")
    source = tmp_path / name / "db.sqlite3"
    source.parent.mkdir(exist_ok=True)
    with sqlite3.connect(source) as database:
        database.execute("CREATE TABLE a (b)")
    database.close()
    copy_sqlite_file(source, tmp_path / "copy.sqlite3")
    copy = sqlite3.connect(tmp_path / "copy.sqlite3")
    assert copy.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    copy.close()
