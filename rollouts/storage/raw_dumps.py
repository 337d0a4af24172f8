"""Removes the raw bytes of dumps that no row needs any more."""

import time
from collections.abc import Iterable

from rollouts.models import Dump
from rollouts.storage.deletion_lock import allow_deletion
from rollouts.storage.files import get_raw_dump_path

MIN_FILE_AGE_SECONDS = 60  # an upload of the same bytes may write its row just now


def delete_unused_raw_files(project_id: int, hashes: Iterable[str]) -> list[str]:
    """Removes the files that no dump of the project needs. The rows say so already.

    Returns the hashes of the files that remain for the hourly cleanup: while a backup runs all, otherwise those that
    were written or used in the last minute.
    """
    with allow_deletion() as allowed:
        return [sha256 for sha256 in sorted(set(hashes)) if not allowed or not delete_raw_file(project_id, sha256)]


def delete_raw_file(project_id: int, sha256: str) -> bool:
    """Returns False if the file is too recent. A file that a dump needs stays, and is not reported."""
    needed = Dump.objects.filter(run__project=project_id, sha256=sha256, raw_dropped_at=None)
    if needed.exclude(source__startswith=Dump.ARTIFACT_PREFIX).exists():
        return True
    path = get_raw_dump_path(project_id, sha256)
    try:
        if path.stat().st_mtime >= time.time() - MIN_FILE_AGE_SECONDS:
            return False
        path.unlink()
    except FileNotFoundError:
        pass
    return True
