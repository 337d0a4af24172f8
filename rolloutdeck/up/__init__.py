"""`rolloutdeck up`: checks the machine, prepares the database, and supervises Redis, worker and web process.

Depends on: `rolloutdeck.protocol` and supervisor.
Invariant: every child process ends with its parent.
"""

from rolloutdeck.up.child import end_with_parent
from rolloutdeck.up.command import main
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import ServerPaths, acquire_data_lock, find_server_folder
from rolloutdeck.up.restore_checks import (
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    RESTORE_MARKER,
    begin_restore,
    check_backup_exists,
    check_restore_finished,
    list_backup_names,
)
from rolloutdeck.up.server_command import run_migrations, run_server_command, run_web, run_worker

__all__ = [
    "MANIFEST_NAME", "PARTIAL_SUFFIX", "RESTORE_MARKER", "ServerPaths", "StartFailedError", "StartRefusedError",
    "acquire_data_lock", "check_backup_exists", "check_restore_finished", "end_with_parent", "find_server_folder",
    "list_backup_names", "main", "begin_restore", "run_migrations", "run_server_command", "run_web", "run_worker",
]  # fmt: skip
