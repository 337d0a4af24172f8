"""Records a data folder as a version writes it: python -m scripts.record_data_folder 0.2.0

Writes tests/data/versions/<version>.tar.gz and .json for tests/test_old_data.py. `--python` is the interpreter of
another version: `git worktree add`, then a virtual environment with that version in it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import sys
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path

from tests.support import data_folder
from tests.support.server import Product

VERSIONS = data_folder.DATA / "versions"
SESSION_TABLES = {"django_session", "rollouts_signinsession"}  # before and after 0.2.0
LEFT_OUT = ("secret-key", "run", "logs", "static", "incoming")  # secrets, and what `up` creates


def strip_secrets(data: Path) -> None:
    """Removes sessions, passwords, valid tokens and keys. Leaves one database file without a write-ahead log."""
    with closing(sqlite3.connect(data / "db.sqlite3", isolation_level=None)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for name in SESSION_TABLES & tables:
            database.execute(f"DELETE FROM {name}")  # noqa: S608 - one of our names
        database.execute("UPDATE auth_user SET password = '!'")
        database.execute("DELETE FROM rollouts_token WHERE revoked_at IS NULL")
        database.execute("PRAGMA secure_delete = ON")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in LEFT_OUT:
        path = data / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def pack(data: Path, target: Path) -> None:
    """Packs regular files, without the user and the times of this machine."""

    def clean(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:gz", compresslevel=9) as archive:
        for path in sorted(path for path in data.rglob("*") if path.is_file()):
            archive.add(path, path.relative_to(data).as_posix(), filter=clean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--python", default=sys.executable)
    args = parser.parse_args()
    VERSIONS.mkdir(exist_ok=True)
    python = Path(args.python).absolute()
    with tempfile.TemporaryDirectory() as folder, Product(python=str(python)) as product:
        data_folder.write_content(product, Path(folder))
        content = data_folder.read_content(product)
        product.down()
        strip_secrets(product.data)
        pack(product.data, VERSIONS / f"{args.version}.tar.gz")
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (VERSIONS / f"{args.version}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["PYTHONSAFEPATH"] = "1"  # `python -m rolloutdeck` does not take the version of this folder
    main()
