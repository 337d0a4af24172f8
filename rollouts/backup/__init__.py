"""Backups of a running server, their restore, and upgrades of the database. See docs/decisions/backup.md.

Depends on: integrity, which lists the files that rows refer to, and storage.
Invariant: a folder is a backup only if it has a manifest, and the manifest is written last.
"""

from rollouts.backup.create import BackupResult, create_backup
from rollouts.backup.errors import BackupError
from rollouts.backup.manifest import Manifest, describe_bytes, list_backups
from rollouts.backup.restore import RestoreResult, restore_backup
from rollouts.backup.upgrade import UpgradeError, check_data_version, migrate_database

__all__ = [
    "BackupError", "BackupResult", "Manifest", "RestoreResult", "UpgradeError", "check_data_version", "create_backup",
    "describe_bytes", "list_backups", "migrate_database", "restore_backup",
]  # fmt: skip
