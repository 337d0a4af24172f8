"""`rolloutdeck copy-sqlite`: copies the rows of the SQLite database into the PostgreSQL database of DATABASE_URL."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.management.server_command import ServerCommand
from rolloutdeck.cli import add_copy_sqlite_arguments, format_count
from rolloutdeck.up import ServerPaths, StartRefusedError, acquire_data_lock, find_server_folder
from rollouts.backup import BackupError, copy_to_postgres
from rollouts.storage import load_location, own_data_folder, read_owner


class Command(ServerCommand):
    help = "Copy all rows of the SQLite database into the empty PostgreSQL database that DATABASE_URL names."
    needs_database = False  # the checks of other commands refuse the files of another database

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_copy_sqlite_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        path: Path = (options["path"] or settings.DATA_DIR / "db.sqlite3").expanduser().absolute()
        paths = ServerPaths(data=path.parent, server=find_server_folder(), sockets=path.parent)
        try:
            if paths.run.is_dir():  # `up` cannot start in the data folder before this process ends
                acquire_data_lock(paths)
        except StartRefusedError as error:
            raise BackupError(str(error)) from error
        count = copy_to_postgres(path, self.stderr)
        rows = format_count(count, "row")
        self.stdout.write(f"Copied {rows}. Each table has the same number of rows in both databases.")
        is_own = path == (settings.DATA_DIR / "db.sqlite3").absolute()
        server = load_location().server
        try:
            if read_owner() == f"{server} sqlite" or (is_own and not read_owner()):
                own_data_folder(server)
            if is_own:
                moved = put_aside(path)
                self.stdout.write(f"{path} is now {moved.name}, so that no start without DATABASE_URL uses it.")
        except OSError as error:
            self.stderr.write(
                f"The rows were copied, but {error.filename} could not be changed: {error.strerror}. Rename {path} and "
                f"remove {settings.DATA_DIR / 'server'} yourself."
            )
            return 1
        return 0


def put_aside(path: Path) -> Path:
    """Renames an SQLite database. Returns the new path."""
    moved = path.with_name(f"{path.name}.moved")
    for suffix in ("-wal", "-shm", ""):
        if (file := Path(f"{path}{suffix}")).exists():
            file.replace(f"{moved}{suffix}")
    return moved
