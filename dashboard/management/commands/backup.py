"""`rolloutdeck backup`: makes a backup of a running server."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from dashboard.management.server_command import ProgressPrinter, ServerCommand
from rolloutdeck.cli import add_backup_arguments, format_count
from rolloutdeck.lib import format_bytes
from rollouts.backup import create_backup


class Command(ServerCommand):
    help = "Back up the database and all files that it refers to."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_backup_arguments(parser)

    def run(self, options: dict[str, Any]) -> int:
        destination: Path = options["destination"].expanduser().absolute()
        result = create_backup(destination, max(0, options["keep"]), ProgressPrinter("copied"))
        manifest = result.manifest
        size = f"{format_count(len(manifest.files), 'file')}, {format_bytes(manifest.bytes)} with the database"
        new = f"{format_count(result.copied, 'new file')}, {format_bytes(result.copied_bytes)}"
        self.stdout.write(f"Backup {manifest.name} is complete: {size}; copied {new}.")
        if result.removed:
            self.stdout.write(f"Removed older backups: {', '.join(result.removed)}.")
        for name in manifest.missing[:20]:
            self.stderr.write(f"missing in the data folder: {name}")
        if manifest.missing:
            verb = "was" if len(manifest.missing) == 1 else "were"
            lost = format_count(len(manifest.missing), "file")
            self.stderr.write(f"{lost} {verb} lost before. Run `rolloutdeck fsck`.")
        return 1 if manifest.missing else 0
