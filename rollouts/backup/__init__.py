"""Backups of a running server, their restore, upgrades of the database, and moves of the files to another place.

Depends on: integrity, which lists the files that rows refer to, and storage.
Invariant: a folder is a backup only if it has a manifest, and the manifest is written last.
"""

from rollouts.backup.create import BackupResult, create_backup
from rollouts.backup.database import count_rows, get_engine, is_database_empty, list_migrations
from rollouts.backup.errors import BackupError
from rollouts.backup.manifest import (
    POOL_NAME,
    Manifest,
    clean_pool,
    compute_sha256,
    iterate_backups,
    lock_destination,
    remove_backup,
    write_manifest,
)
from rollouts.backup.move import MoveResult, move_files
from rollouts.backup.restore import RestoreResult, restore_backup
from rollouts.backup.tables import apply_migrations
from rollouts.backup.to_postgres import copy_to_postgres
from rollouts.backup.upgrade import UpgradeError, check_data_version, migrate_database

__all__ = [
    "POOL_NAME", "BackupError", "BackupResult", "Manifest", "MoveResult", "RestoreResult", "UpgradeError",
    "apply_migrations", "check_data_version", "clean_pool", "compute_sha256", "copy_to_postgres", "count_rows",
    "create_backup", "get_engine", "is_database_empty", "iterate_backups", "list_migrations", "lock_destination",
    "migrate_database", "move_files", "remove_backup", "restore_backup", "write_manifest",
]  # fmt: skip
