"""What a restore needs before it begins: a backup, and a data folder with a marker until the restore has finished."""

from __future__ import annotations

import uuid
from pathlib import Path

from rolloutdeck.up.errors import StartRefusedError

RESTORE_MARKER = "restore-incomplete"
MANIFEST_NAME = "manifest.json"  # in the folder of each backup
PARTIAL_SUFFIX = ".partial"  # of the folder of a backup that did not finish


def check_restore_finished(data: Path) -> None:
    """Raises StartRefusedError if a restore into the folder was interrupted."""
    if (data / RESTORE_MARKER).exists():
        hint = "Run the same `rolloutdeck restore` again; it continues."
        raise StartRefusedError(f"The restore into {data} has not finished. {hint}")


def list_backup_names(destination: Path) -> list[str]:
    """Returns the finished backups in the folder of all backups, oldest first."""
    names = sorted(path.parent.name for path in destination.glob(f"*/{MANIFEST_NAME}"))
    return [name for name in names if not name.endswith(PARTIAL_SUFFIX)]


def check_backup_exists(destination: Path, name: str) -> None:
    """Raises StartRefusedError if the folder does not have the backup `name`, or any if there is no name."""
    names = list_backup_names(destination)
    if not names:
        hint = "Name the folder that `rolloutdeck backup` was given."
        raise StartRefusedError(f"There is no finished backup in {destination}. {hint}")
    if name and name not in names:
        raise StartRefusedError(f"There is no backup {name} in {destination}. It has: {', '.join(names)}.")


def begin_restore(data: Path) -> str:
    """Marks an empty or new folder and returns the id of the restore: a new one, or that of the interrupted restore.

    Raises StartRefusedError if the folder has other files.
    """
    marker = data / RESTORE_MARKER
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if marker.exists() and (text := marker.read_text(encoding="ascii").strip()):
        return text
    if others := sorted(path.name for path in data.iterdir() if path != marker):
        raise StartRefusedError(f"{data} is not empty (it has {others[0]}). Restore into a new folder.")
    restore_id = uuid.uuid4().hex
    marker.write_text(restore_id, encoding="ascii")
    return restore_id
