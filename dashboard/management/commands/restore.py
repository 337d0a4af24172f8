"""`rolloutdeck restore`: restores a backup into a new data folder."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings

from dashboard.management.server_command import ProgressPrinter, ServerCommand
from rolloutdeck.cli import add_restore_arguments, format_count
from rolloutdeck.lib import format_bytes
from rollouts.backup import restore_backup


class Command(ServerCommand):
    help = "Restore a backup into an empty data folder and an empty database."
    needs_database = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_restore_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        destination: Path = options["destination"].expanduser().absolute()
        result = restore_backup(destination, options["backup"], ProgressPrinter("verified"))
        manifest = result.manifest
        rows = format_count(sum(manifest.rows.values()), "row")
        files = format_count(len(manifest.files) - len(result.damaged), "file")
        size = format_bytes(manifest.bytes)
        self.stdout.write(f"Backup {manifest.name} is restored to {settings.DATA_DIR}: {rows}, {files}, {size}.")
        self.stdout.write(f"All sessions are ended. Start it with: rolloutdeck up --data {settings.DATA_DIR}")
        for name in result.damaged[:20]:
            self.stderr.write(f"damaged or missing in the backup: {name}")
        if result.damaged:
            verb = "was" if len(result.damaged) == 1 else "were"
            damaged = format_count(len(result.damaged), "file")
            self.stderr.write(f"{damaged} {verb} not restored. Run `rolloutdeck fsck --repair`.")
        return 1 if result.damaged else 0
