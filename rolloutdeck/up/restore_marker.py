"""A data folder that a restore has begun to fill has a marker, until the restore has finished."""

from __future__ import annotations

import uuid
from pathlib import Path

from rolloutdeck.up.errors import StartRefusedError

RESTORE_MARKER = "restore-incomplete"


def check_restore_finished(data: Path) -> None:
    """Raises StartRefusedError if a restore into the folder was interrupted."""
    if (data / RESTORE_MARKER).exists():
        hint = "Run the same `rolloutdeck restore` again; it continues."
        raise StartRefusedError(f"The restore into {data} has not finished. {hint}")


def mark_restore(data: Path) -> str:
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
