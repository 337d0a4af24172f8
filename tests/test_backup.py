"""A server that is restored from a backup is equal, on SQLite and on PostgreSQL. Real servers, real commands."""

from __future__ import annotations

import http.cookiejar
import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Product, free_port
from tests.test_full_disk import create_person
from tests.test_move_to_postgres import connect, import_dumps, post_json, postgres, read_run  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


class ServerWithDatabase(Product):
    """A server on SQLite, or on the PostgreSQL of `database_url`."""

    def __init__(self, database_url: str = "") -> None:
        super().__init__()
        self.database_url = database_url

    def up(self) -> None:
        if self.database_url:
            self.environ["DATABASE_URL"] = self.database_url
        super().up()

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rolloutdeck", *words]
        return subprocess.run(command, env=self.environ, cwd=ROOT, capture_output=True, text=True, timeout=600)

    def backup(self, destination: Path) -> str:
        done = self.call("backup", str(destination), "--data", str(self.data))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def restore(self, destination: Path, data: Path) -> subprocess.CompletedProcess[str]:
        return self.call("restore", str(destination), "--data", str(data))

    def restart_with_data(self, data: Path) -> None:
        """Starts again with another data folder, at the same address."""
        self.data = data
        (self.home / ".rolloutdeck" / "local.json").unlink(missing_ok=True)  # a restored server has another local token
        self.up()


class Browser:
    """A browser of a user who signs in."""

    def __init__(self) -> None:
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))

    def sign_in(self, url: str) -> None:
        page = self.opener.open(f"{url}/sign-in/", timeout=30).read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert token
        form = {"csrfmiddlewaretoken": token[1], "username": "ada", "password": "correct-horse"}
        self.opener.open(f"{url}/sign-in/", urllib.parse.urlencode(form).encode(), timeout=30).read()

    def is_signed_in(self, url: str) -> bool:
        with self.opener.open(f"{url}/settings/", timeout=30) as answer:
            return "/sign-in/" not in answer.geturl()


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """The URLs of two empty databases; empty for SQLite."""
    if request.param == "sqlite":
        yield "", ""
        return
    first: str = request.getfixturevalue("postgres")
    with connect(first) as connection:
        connection.execute("CREATE DATABASE restored TEMPLATE template0")
    yield first, first.rpartition("/")[0] + "/restored"


def leave_mark_of_killed_restore(url: str) -> None:
    """Creates the table that a restore leaves if it is killed before its last step."""
    with connect(url) as connection:
        connection.execute("CREATE TABLE rolloutdeck_restore AS SELECT 'killed'::text AS id")


def test_a_restored_server_is_equal_and_all_sessions_are_ended(databases: tuple[str, str], tmp_path: Path) -> None:
    with ServerWithDatabase(databases[0]) as product:
        create_person(product)
        browser = Browser()
        browser.sign_in(product.url)
        assert browser.is_signed_in(product.url)
        import_dumps(product, "v0")
        uid = product.get("runs/?project=math")["results"][0]["id"]
        sample = product.get(f"samples/?run={uid}&step=1")["results"][0]["id"]
        post_json(product, "flags/", {"sample": sample, "label": "bad", "reason": "other", "text": "look \u2028 here"})
        before, pins = read_run(product, uid), product.get("pins/?project=math")
        assert before["samples"] and before["flags"]["results"]
        if databases[0]:
            leave_mark_of_killed_restore(databases[0])
        assert " copied 0 new files" not in product.backup(tmp_path / "backups")
        assert " copied 0 new files" in product.backup(tmp_path / "backups")
        post_json(product, "flags/", {"sample": sample, "label": "good", "reason": "truncated", "text": "later"})
        product.down()

        if databases[1]:
            used = product.restore(tmp_path / "backups", tmp_path / "used")
            assert used.returncode == 2 and "is not empty" in used.stderr
            product.environ["DATABASE_URL"] = product.database_url = databases[1]
        done = product.restore(tmp_path / "backups", tmp_path / "new")
        assert done.returncode == 0, done.stderr
        again = product.restore(tmp_path / "backups", tmp_path / "new")
        assert again.returncode == 2 and "is not empty" in again.stderr
        product.restart_with_data(tmp_path / "new")
        assert read_run(product, uid) == before and product.get("pins/?project=math") == pins
        assert not browser.is_signed_in(product.url)
        browser.sign_in(product.url)
        assert browser.is_signed_in(product.url)


def change_manifest(destination: Path, **values: Any) -> None:
    path = next(destination.glob("*/manifest.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_restore_refuses_what_it_cannot_do_and_continues_after_a_kill(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    with ServerWithDatabase() as product:
        import_dumps(product, "v0")
        product.backup(backups)
        manifest = json.loads(next(backups.glob("*/manifest.json")).read_text())

        change_manifest(backups, migrations=[*manifest["migrations"], "rollouts.9999_future"], version="9.1")
        done = product.restore(backups, tmp_path / "newer")
        assert done.returncode == 2
        assert "made by Rolloutdeck 9.1, which is newer" in done.stderr and "rollouts.9999_future" in done.stderr
        change_manifest(backups, migrations=manifest["migrations"])

        damaged, missing = sorted(manifest["files"])[:2]
        (backups / "files" / damaged).write_bytes(b"damaged")
        (backups / "files" / missing).unlink()
        done = product.restore(backups, tmp_path / "damaged")
        assert done.returncode == 1 and damaged in done.stderr and missing in done.stderr
        assert "2 files were not restored" in done.stderr and not (tmp_path / "damaged" / damaged).exists()

        (backups / manifest["name"] / "database.sqlite3").write_bytes(b"damaged")
        done = product.restore(backups, tmp_path / "half")
        assert done.returncode == 2 and "missing or damaged" in done.stderr
        done = product.call("up", "--data", str(tmp_path / "half"), "--port", str(free_port()))
        assert done.returncode == 2 and "has not finished" in done.stderr
