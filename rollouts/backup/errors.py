"""The error of backups."""

from rollouts.errors import RolloutError


class BackupError(RolloutError):
    """A backup or a restore is not possible. The message says why and what to do."""

    code = "backup"
