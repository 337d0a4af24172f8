"""A running server moves its files to a bucket, and is restored into another place. Real processes, real commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.bucket_server import create_place
from tests.test_backup import ServerWithDatabase, import_dumps, read_run

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def test_a_server_moves_to_a_bucket_and_is_restored_into_another_one(tmp_path: Path) -> None:
    place, other = create_place(), create_place()
    with ServerWithDatabase() as product:
        import_dumps(product, "v0")
        uid = product.get("runs/?project=math")["results"][0]["id"]
        before = read_run(product, uid)
        move = ("storage", "move", place, "--data", str(product.data))
        done = product.call(*move)
        assert done.returncode == 0 and "Restart all processes" in done.stdout, done.stderr
        product.down()
        product.environ["ROLLOUTDECK_STORAGE"] = place
        product.up()
        done = product.call(*move)
        assert f"All files are in {place}" in done.stdout, done.stderr
        for kind in ("raw", "bodies", "blobs", "images"):
            shutil.rmtree(product.data / kind, ignore_errors=True)
        assert read_run(product, uid) == before and before["samples"]
        import_dumps(product, "v1")  # the worker reads and writes the bucket
        uids = [run["id"] for run in product.get("runs/?project=math")["results"]]
        everything = [read_run(product, each) for each in uids]
        assert product.call("fsck", "--data", str(product.data), "--grace=0").stdout.endswith("Clean.\n")

        del product.environ["ROLLOUTDECK_STORAGE"]
        done = product.call("worker", "--data", str(product.data))
        assert done.returncode == 1 and f"The files of this server are in {place}" in done.stderr
        product.environ["ROLLOUTDECK_STORAGE"] = place
        product.backup(tmp_path / "backups")
        product.down()
        done = product.restore(tmp_path / "backups", tmp_path / "taken")
        assert done.returncode == 2 and "another server" in done.stderr
        product.environ["ROLLOUTDECK_STORAGE"] = other
        done = product.restore(tmp_path / "backups", tmp_path / "new")
        assert done.returncode == 0, done.stderr
        product.restart_with_data(tmp_path / "new")
        assert [read_run(product, each) for each in uids] == everything
