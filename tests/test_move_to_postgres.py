"""A move from the embedded SQLite to PostgreSQL, by the commands of docs/deployment.md, on real servers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import environ
import psycopg
import pytest

from tests.conftest import DATA
from tests.support.server import Product

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of an empty database on a throw-away cluster."""
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("needs PostgreSQL")
    command = [ROOT / "scripts/with_postgres.sh", "sh", "-c", "echo $DATABASE_URL; read line"]
    cluster = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert cluster.stdin and cluster.stdout
    yield cluster.stdout.readline().strip()
    cluster.communicate("\n", timeout=600)


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    address = environ.Env.db_url_config(url)
    return psycopg.connect(host=address["HOST"], user=address["USER"], dbname=address["NAME"], autocommit=True)


def post_json(product: Product, path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {product.token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{product.url}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def import_dumps(product: Product, folder: str) -> None:
    assert (
        product.command("import", str(DATA / "verl_jsonl" / folder), "--project", "math", "--run", "v0").wait(120) == 0
    )


def read_run(product: Product, uid: str) -> dict[str, Any]:
    """What a user can see of the run: its row, its steps, samples with all fields, flags, metrics."""
    samples = product.get(f"samples/?run={uid}&step=all&page_size=500")["results"]
    return {
        "run": product.get(f"runs/{uid}/"),
        "steps": product.get(f"runs/{uid}/steps/"),
        "samples": {item["id"]: product.get(f"samples/{item['id']}/") for item in samples[::20]},
        "flags": product.get(f"flags/?run={uid}"),
        "metrics": product.get(f"runs/{uid}/metrics/?name=critic/score/mean"),
    }


def test_a_link_to_a_sample_opens_the_same_sample_after_a_move_to_postgresql(postgres: str) -> None:
    with Product() as product:
        import_dumps(product, "v0")
        uid = product.get("runs/?project=math")["results"][0]["id"]
        first = product.get(f"samples/?run={uid}&step=1")["results"][0]["id"]
        post_json(product, "flags/", {"sample": first, "label": "bad", "reason": "other", "text": "look \u2028 here"})
        before = read_run(product, uid)
        running = copy_sqlite(product.data, postgres)
        assert running.returncode == 2 and f"Rolloutdeck already runs on {product.data} (process " in running.stderr
        product.down()
        product.environ |= {"DATABASE_URL": postgres}
        rows, server = dump_rows(product.data / "db.sqlite3"), (product.data / "server").read_text().split()[0]
        done = copy_sqlite(product.data, postgres)
        assert done.returncode == 0 and "Each table has the same number of rows in both databases." in done.stdout
        assert [path.name for path in product.data.glob("db.sqlite3*")] == ["db.sqlite3.moved"]
        assert dump_rows(product.data / "db.sqlite3.moved") == rows
        assert (product.data / "server").read_text() == f"{server} postgresql\n"
        product.up()
        assert read_run(product, uid) == before
        assert before["flags"]["results"][0]["sample"] == first and before["samples"]
        again = post_json(product, "flags/", {"sample": first, "label": "good", "reason": "truncated", "text": ""})
        assert again["id"] > before["flags"]["results"][0]["id"]
        product.down()
        refuse_start(product)
        (product.data / "db.sqlite3.moved").rename(product.data / "db.sqlite3")
        refuse_start(product)


def copy_sqlite(data: Path, postgres: str) -> subprocess.CompletedProcess[str]:
    """As a user calls it: with DATABASE_URL in the environment."""
    return run_command("copy-sqlite", data, postgres)


def run_command(name: str, data: Path, database: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rolloutdeck", name, "--data", str(data)]
    environ = {**os.environ, "DATABASE_URL": database}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)


def dump_rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return list(database.iterdump())


def refuse_start(product: Product) -> None:
    """A start without DATABASE_URL, with an empty database or with the old rows, would delete the stored files."""
    done = run_command("migrate", product.data, "")
    assert done.returncode and "The files are of a PostgreSQL database: set DATABASE_URL." in done.stderr


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The data folder of a server with an admin, and no process."""
    command = [sys.executable, "-m", "rolloutdeck", "migrate", "--link", "--data", str(tmp_path / "data")]
    subprocess.run(command, env={**os.environ, "DATABASE_URL": ""}, check=True, capture_output=True, timeout=600)
    return tmp_path / "data"


def test_a_copy_is_refused_while_a_process_that_was_started_alone_has_the_database_open(
    postgres: str, stopped: Path
) -> None:
    with closing(sqlite3.connect(stopped / "db.sqlite3")) as web_process:
        web_process.execute("SELECT count(*) FROM auth_user").fetchone()
        done = copy_sqlite(stopped, postgres)
        assert done.returncode == 2 and "Stop the server, all web processes and workers" in done.stderr
    assert (stopped / "db.sqlite3").exists()
    assert copy_sqlite(stopped, postgres).returncode == 0


def test_a_copy_is_refused_by_a_database_with_rows_and_changes_nothing(postgres: str, stopped: Path) -> None:
    assert copy_sqlite(stopped, postgres).returncode == 0
    (stopped / "db.sqlite3.moved").rename(stopped / "db.sqlite3")
    rows = dump_rows(stopped / "db.sqlite3")
    done = copy_sqlite(stopped, postgres)
    assert done.returncode == 2 and "The database of DATABASE_URL is not empty: auth_user has rows." in done.stderr
    assert dump_rows(stopped / "db.sqlite3") == rows


def test_a_copy_goes_into_a_database_that_a_refused_start_has_prepared(postgres: str, stopped: Path) -> None:
    (stopped / "raw/aa").mkdir(parents=True)
    (stopped / "raw/aa/file").write_text("a dump")
    assert "has the files of another database" in run_command("migrate", stopped, postgres).stderr
    done = copy_sqlite(stopped, postgres)
    assert (done.returncode, done.stderr) == (0, "")
    assert run_command("migrate", stopped, postgres).returncode == 0


@pytest.mark.parametrize("database", ["", "sqlite:////tmp/other.sqlite3"])
def test_a_copy_without_postgresql_says_what_to_set(stopped: Path, database: str) -> None:
    done = copy_sqlite(stopped, database)
    assert done.returncode == 2 and "Set DATABASE_URL to an empty PostgreSQL database" in done.stderr
    assert (stopped / "db.sqlite3").exists()


def test_a_copy_that_lost_a_row_is_undone(postgres: str, stopped: Path, tmp_path: Path) -> None:
    assert run_command("migrate", tmp_path / "other", postgres).returncode == 0  # creates the tables
    with connect(postgres) as database:
        database.execute("CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        database.execute("CREATE TRIGGER lose BEFORE INSERT ON auth_user FOR EACH ROW EXECUTE FUNCTION lose()")
    done = copy_sqlite(stopped, postgres)
    assert done.returncode == 2 and "these tables got another number of rows: auth_user." in done.stderr
    assert (stopped / "db.sqlite3").exists() and (stopped / "server").read_text().endswith(" sqlite\n")
    with connect(postgres) as database:
        database.execute("DROP TRIGGER lose ON auth_user")
    assert copy_sqlite(stopped, postgres).returncode == 0  # the database is still empty
