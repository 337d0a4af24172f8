"""`rolloutdeck storage move`: moves the stored files of a running server to a bucket, or back to the data folder."""

from argparse import ArgumentParser
from typing import Any

from dashboard.management.server_command import ProgressPrinter, ServerCommand
from rolloutdeck.cli import add_storage_arguments, format_count
from rolloutdeck.lib import format_bytes
from rollouts.backup import move_files

MAX_LINES = 50


class Command(ServerCommand):
    help = "Move the stored files to a bucket, or back to the data folder. Works while the server runs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_storage_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        place = options["place"].rstrip("/")
        url = "" if place == "disk" else place
        result = move_files(url, ProgressPrinter("copied"))
        self.stdout.write(f"Copied {format_count(result.copied, 'file')}, {format_bytes(result.bytes)}.")
        for key in result.lost[:MAX_LINES]:
            self.stdout.write(f"lost earlier: {key}")
        if len(result.lost) > MAX_LINES:
            self.stdout.write(f"… and {len(result.lost) - MAX_LINES:,} more; `rolloutdeck fsck` says more.")
        if result.is_finished:
            self.stdout.write(f"All files are in {place}. The copies in the old place are not used any more.")
        else:
            variable = f"ROLLOUTDECK_STORAGE={url}" if url else "an empty ROLLOUTDECK_STORAGE"
            self.stdout.write(f"Restart all processes with {variable}, then run this command with it again.")
        return 1 if result.lost else 0
