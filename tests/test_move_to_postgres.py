"""A move from the embedded SQLite to PostgreSQL, by the commands of docs/deployment.md, on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        product.down()
        product.environ |= {"DATABASE_URL": postgres, "ROLLOUTDECK_DATA": str(product.data)}
        copy_command = [sys.executable, str(ROOT / "manage.py"), "copy_sqlite"]
        subprocess.run(
            copy_command, env=product.environ, check=True, stdout=product.log, stderr=product.log, timeout=600
        )
        assert [path.name for path in product.data.glob("db.sqlite3*")] == ["db.sqlite3.moved"]
        product.up()
        assert read_run(product, uid) == before
        assert before["flags"]["results"][0]["sample"] == first and before["samples"]
        again = post_json(product, "flags/", {"sample": first, "label": "good", "reason": "truncated", "text": ""})
        assert again["id"] > before["flags"]["results"][0]["id"]
        product.down()
        refuse_start(product)
        (product.data / "db.sqlite3.moved").rename(product.data / "db.sqlite3")
        refuse_start(product)


def refuse_start(product: Product) -> None:
    """A start without DATABASE_URL, with an empty database or with the old rows, would delete the stored files."""
    command = [sys.executable, "-m", "rolloutdeck", "migrate", "--data", str(product.data)]
    environ = {**product.environ, "DATABASE_URL": ""}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode and "The files are of a PostgreSQL database: set DATABASE_URL." in done.stderr
