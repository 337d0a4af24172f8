"""Backups of a running server, and their restore. docs/decisions/backup.md says how they stay consistent.

Depends on: integrity, which lists the files that rows refer to, and storage.
Invariant: a folder is a backup only if it has a manifest, and the manifest is written last.
"""

from rollouts.backup.create import BackupResult, create_backup
from rollouts.backup.errors import BackupError
from rollouts.backup.manifest import Manifest, describe_bytes, list_backups
from rollouts.backup.restore import RestoreResult, restore_backup

__all__ = [
    "BackupError", "BackupResult", "Manifest", "RestoreResult", "create_backup", "describe_bytes", "list_backups",
    "restore_backup",
]  # fmt: skip
