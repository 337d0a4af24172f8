"""Removes a prompt from the backups of a folder.

The files of all backups are below one folder, with the paths of a data folder. So a copy of the database, together with
that folder, is a server at rest: the samples are removed from it as from the server. A backup changes in one step, when
its manifest names the new copy of the database. Files that no backup names are removed at the end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from django.db import connection
from django.utils import timezone

from rolloutdeck.lib import read_version
from rollouts.backup import (
    POOL_NAME,
    BackupError,
    Manifest,
    apply_migrations,
    clean_pool,
    compute_sha256,
    count_rows,
    get_engine,
    iterate_backups,
    list_migrations,
    lock_destination,
    remove_backup,
    write_manifest,
)
from rollouts.forgetting.files import UsedImages
from rollouts.forgetting.forget import erase_database_pages, erase_deleted_values, remove_in_rounds
from rollouts.forgetting.traces import find_traces, parse_prompt_key
from rollouts.integrity import iterate_references
from rollouts.models import ForgottenPrompt, Project
from rollouts.storage import find_file, use_folder


@dataclass(slots=True)
class BackupForgetting:
    """`changed` backups lost samples, `unchanged` had none, `removed` were removed completely, of `incomplete` ones
    something is left. `files` is the number of files that no backup needs any more."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    files: int = 0


def forget_in_backups(
    destination: Path, slug: str, key: str, *, containing: bool = False, remove: bool = False
) -> BackupForgetting:
    """Removes the prompt from every backup in `destination`. A copy of PostgreSQL cannot be changed: with `remove`,
    such backups are removed completely. A killed call continues when it is called again.

    Raises BackupError, before anything changes, if a backup cannot be changed and `remove` is False.
    """
    parse_prompt_key(key)
    result = BackupForgetting()
    with lock_destination(destination):
        fixed = [manifest.name for manifest in iterate_backups(destination) if not can_change(manifest)]
        if fixed and not remove:
            message = "cannot be changed, because they have a copy of PostgreSQL or this server uses it"
            raise BackupError(f"These backups {message}: {', '.join(fixed)}. --remove-backups removes them.")
        for manifest in iterate_backups(destination):
            if manifest.name in fixed:
                remove_backup(destination, manifest.name)
                result.removed.append(manifest.name)
            else:
                forget_in_backup(destination, manifest, slug, key, containing, result)
        result.files = clean_pool(destination)
    return result


def can_change(manifest: Manifest) -> bool:
    return manifest.engine == "sqlite" and get_engine() == "sqlite"


def forget_in_backup(
    destination: Path, manifest: Manifest, slug: str, key: str, containing: bool, result: BackupForgetting
) -> None:
    folder, pool = destination / manifest.name, destination / POOL_NAME
    remove_unnamed_copies(folder, manifest)
    copy = folder / f"database-{uuid4().hex[:8]}.sqlite3"
    shutil.copyfile(folder / manifest.database, copy)
    with use_copy(copy, pool):
        if (new := forget_in_copy(manifest, slug, key, containing)) is not None:
            os.sync()
            use_new_manifest(new, manifest, copy, folder)
    remove_unnamed_copies(folder, new or manifest)
    names = result.unchanged if new is None else result.changed
    names.append(manifest.name)
    if new is not None and f"{slug}/{key}" not in new.forgotten:
        result.incomplete.append(manifest.name)


def use_new_manifest(new: Manifest, old: Manifest, copy: Path, folder: Path) -> None:
    connection.close()
    new.database, new.database_bytes, new.database_sha256 = copy.name, copy.stat().st_size, compute_sha256(copy)
    new.files = {
        name: entry if entry[1] else (entry[0], compute_sha256(folder.parent / POOL_NAME / name))
        for name, entry in new.files.items()
    }
    write_manifest(new, folder)


def remove_unnamed_copies(folder: Path, manifest: Manifest) -> None:
    """Removes the copies that a killed call has left, and the one that was replaced."""
    for path in folder.glob("database*"):
        if path.name != manifest.database:
            path.unlink()


@contextmanager
def use_copy(path: Path, pool: Path) -> Iterator[None]:
    """Lets this process work on a copy of the database and the files of the backups."""
    before = connection.settings_dict["NAME"]
    connection.close()
    connection.settings_dict["NAME"] = str(path)
    try:
        with use_folder(pool):
            yield
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        shutil.rmtree(pool / "run", ignore_errors=True)  # locks
        shutil.rmtree(pool / "incoming", ignore_errors=True)


def forget_in_copy(manifest: Manifest, slug: str, key: str, containing: bool) -> Manifest | None:
    """Removes the prompt from the copy in use. Returns the new manifest without the database's hash; None if the copy
    does not have the prompt. Files have no hash if they are new."""
    apply_migrations(verbosity=0)  # the copy of an older version
    project = Project.objects.filter(slug=slug).first()
    if project is None:
        return None
    report = find_traces(project, key, containing, with_orphans=False)
    known = ForgottenPrompt.objects.filter(project=project, key=key).exclude(finished_at=None)
    if report.is_empty and (known.exists() or f"{slug}/{key}" in manifest.forgotten):
        return None
    erase_deleted_values()
    row = ForgottenPrompt.objects.get_or_create(project=project, key=key)[0]
    left = remove_in_rounds(row, report, containing, with_orphans=False)
    removed = list_unused_images(row)
    finished_at = timezone.now() if left.is_empty else None
    ForgottenPrompt.objects.filter(pk=row.pk).update(pending=[], finished_at=finished_at, counts=report.counts)
    erase_database_pages()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode=DELETE")  # one file, without a log next to it
    names = {reference.name for reference in iterate_references()}
    files = {name: entry for name, entry in manifest.files.items() if name in names or name.startswith("images/")}
    files = {name: entry for name, entry in files.items() if name not in removed}
    new = [file for file in map(find_file, names - manifest.files.keys()) if file]
    files |= {file.key: (file.bytes, "") for file in new}
    return replace(
        manifest,
        version=read_version(),
        migrations=list_migrations("default"),
        rows=count_rows("default"),
        files=files,
        missing=[name for name in manifest.missing if name in names],
        forgotten=[*manifest.forgotten, *([f"{slug}/{key}"] if left.is_empty else [])],
    )


def list_unused_images(row: ForgottenPrompt) -> set[str]:
    images, names = UsedImages(), [name for name in row.pending if name.startswith("images/")]
    parts = {name: Path(name).parts for name in names}
    return {name for name in names if not images.has(parts[name][1], parts[name][3])}
