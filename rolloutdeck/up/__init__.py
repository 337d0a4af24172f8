"""`rolloutdeck up`: checks the machine, prepares the database, and supervises Redis, worker and web process.

Depends on: `rolloutdeck.protocol` and supervisor.
Invariant: every child process ends with its parent.
"""

from rolloutdeck.up.child import end_with_parent
from rolloutdeck.up.command import main
from rolloutdeck.up.errors import StartFailedError, StartRefusedError
from rolloutdeck.up.paths import ServerPaths, acquire_data_lock, find_server_folder

__all__ = [
    "ServerPaths", "StartFailedError", "StartRefusedError", "acquire_data_lock", "end_with_parent",
    "find_server_folder", "main",
]  # fmt: skip
