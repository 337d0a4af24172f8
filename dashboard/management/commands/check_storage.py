"""Says whether the server can use the storage of its settings. Workers run it before they start."""

from typing import Any

from dashboard.management.server_command import ServerCommand
from rollouts.storage import check_storage


class Command(ServerCommand):
    help = "Check that the server's files are where the settings say, and that the bucket can be written."
    needs_database = False

    def run(self, options: dict[str, Any]) -> int:
        check_storage()
        return 0
