"""Where this server's files are: the place of the settings, and during a move the other one.

The row of `StorageLocation` says where they are. A process starts only if the settings agree with it, so that a
forgotten variable never splits the files of a server. The place has the id of the server whose rows name its files:
another database, which has no rows of them, would delete them all.
"""

import errno
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from django.conf import settings
from django.db import DatabaseError, connection

from rollouts.errors import RolloutError
from rollouts.models import Blob, Dump, Project, Segment, StorageLocation
from rollouts.storage.bucket import BucketError, BucketStore
from rollouts.storage.cache import FileCache
from rollouts.storage.disk import DiskStore
from rollouts.storage.files import ensure_folder, get_data_root
from rollouts.storage.keys import KINDS
from rollouts.storage.store import Store

log = logging.getLogger(__name__)

MOVE_MARKER: Final = "moving-files"  # in the data folder while its files are moved: saves a query at other times
OWNER_FILE: Final = "server"  # in the data folder, if it has the files: whose rows name them
KNOWN_SECONDS: Final = 5.0  # for which a process relies on what it read


class StorageRefusedError(RolloutError):
    """The server cannot use the storage of its settings. The message says why and what to do."""

    code = "storage_refused"


class KnownLocation:
    """The row, as this process knows it. None: the settings are right, and nothing is moved."""

    def __init__(self) -> None:
        self.row: StorageLocation | None = None
        self.root, self.read_at, self.is_ignored = Path(), -KNOWN_SECONDS, False

    def load(self) -> StorageLocation | None:
        root = get_data_root()
        if self.is_ignored or not (settings.STORAGE_URL or (root / MOVE_MARKER).exists()):
            return None
        if root != self.root or time.monotonic() - self.read_at > KNOWN_SECONDS:
            try:
                self.row = StorageLocation.objects.first()
            except DatabaseError:  # what is known is good enough for a moment
                return self.row
            self.root, self.read_at = root, time.monotonic()
        return self.row

    def clear(self) -> None:
        self.read_at = -KNOWN_SECONDS


known_location = KnownLocation()


def get_store() -> Store:
    return open_store(settings.STORAGE_URL)


def get_writable_store() -> Store:
    """Raises BucketError if the files of the server were moved, and this process has the old settings."""
    row = known_location.load()
    if row and settings.STORAGE_URL not in (row.url, row.moving_to):
        message = f"the files were moved to {describe(row.url)}: restart this process with its ROLLOUTDECK_STORAGE"
        raise BucketError(errno.EIO, message)
    return get_store()


def get_other_store() -> Store | None:
    """Returns the second place that may have files, during a move."""
    row = known_location.load()
    places = [row.url, row.moving_to, row.moved_from] if row else []
    others = [place for place in places if place not in (None, settings.STORAGE_URL)]
    return open_store(others[0]) if others else None


def open_store(url: str) -> Store:
    """`url` is "" for the data folder, or `s3://bucket/prefix`."""
    root = get_data_root()
    if url:
        return BucketStore(url, FileCache(root / "cache", settings.CACHE_BYTES))
    return DiskStore(root)


@contextmanager
def use_folder(path: Path) -> Iterator[None]:
    """Lets this process work on the files of another folder, for example of backups, and on nothing else."""
    before = settings.DATA_DIR, settings.STORAGE_URL
    settings.DATA_DIR, settings.STORAGE_URL, known_location.is_ignored = path, "", True
    try:
        yield
    finally:
        settings.DATA_DIR, settings.STORAGE_URL = before
        known_location.is_ignored = False


def load_location() -> StorageLocation:
    """Returns the row. It is created by the first start: files of an older version are in the data folder."""
    if row := StorageLocation.objects.first():
        return row
    defaults = {"url": ""}
    server, _, vendor = read_owner().partition(" ")
    if vendor == connection.vendor and Project.objects.exists():
        defaults["server"] = server  # of this database: after a way back to an older version, and another upgrade
    # With a key of its own: two processes that start at once get one row, and so one id of the server.
    return StorageLocation.objects.get_or_create(pk=1, defaults=defaults)[0]


def set_location(server: str) -> None:
    """Says that the files are in the place of the settings, and gives the server another id: after a restore."""
    row = StorageLocation.objects.first() or StorageLocation()
    row.server, row.url, row.moving_to, row.moved_from = server, settings.STORAGE_URL, None, None
    row.save()
    if not settings.STORAGE_URL:
        own_data_folder(server)
    known_location.clear()


def check_storage() -> None:
    """Raises StorageRefusedError if the files are elsewhere than the settings say or of another database, or the bucket
    cannot be used."""
    row, configured = load_location(), settings.STORAGE_URL
    is_empty = configured != row.url and not any(model.objects.exists() for model in (Dump, Blob, Segment))
    if configured not in (row.url, row.moving_to) and not is_empty:
        message = (
            f"The files of this server are in {describe(row.url)}, and ROLLOUTDECK_STORAGE names "
            f"{describe(configured)}. Set it to {row.url or 'nothing'}, or move the files: docs/deployment.md says how."
        )
        raise StorageRefusedError(message)
    prepare_place(configured, row.server)
    if is_empty:  # the first start, or one after a wrong setting
        row.url, row.moving_to, row.moved_from = configured, None, None
        row.save()
        known_location.clear()


def prepare_place(url: str, server: str) -> None:
    """Raises StorageRefusedError unless this server can write and delete there, and no other server does."""
    store = open_store(url)
    if not isinstance(store, BucketStore):
        claim_data_folder(server)
        return
    try:
        store.try_out()
        owner = store.claim(server)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        message = f"ROLLOUTDECK_STORAGE cannot be used: {reason}.\nSee docs/deployment.md, Files in a bucket."
        raise StorageRefusedError(message) from error
    if owner != server:
        message = f"{url} has the files of another server. Choose another prefix, such as {url}-2."
        raise StorageRefusedError(message)


def claim_data_folder(server: str) -> None:
    """Marks the data folder as that of this database. Raises StorageRefusedError if its files are of another one. A
    folder of an older version has no mark: then a database without projects does not get its files."""
    owner = read_owner()
    if owner == describe_owner(server):
        return
    has_projects = Project.objects.exists()
    if (owner or not has_projects) and has_stored_files():
        raise StorageRefusedError(explain_other_owner(owner, has_projects))
    try:
        own_data_folder(server)
    except OSError as error:  # such as a full disk, which must not keep the server from starting
        log.warning("%s was not written: %s. The next start tries again.", OWNER_FILE, error)


def check_data_folder() -> None:
    """Raises StorageRefusedError if the files of the data folder are of another database. Writes nothing, and does not
    need the tables of this version."""
    owner = "" if settings.STORAGE_URL else read_owner()
    if not owner:
        return
    has_table = StorageLocation._meta.db_table in connection.introspection.table_names()
    row = StorageLocation.objects.first() if has_table else None
    if (row is None or owner != describe_owner(row.server)) and has_stored_files():
        raise StorageRefusedError(explain_other_owner(owner, has_table and Project.objects.exists()))


def read_owner() -> str:
    """Returns "" if the data folder has no mark. Raises StorageRefusedError."""
    path = get_data_root() / OWNER_FILE
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StorageRefusedError(f"{path} cannot be read: {error.strerror or error}.") from error


def describe_owner(server: str) -> str:
    """Returns the mark of this database. It has the engine too: after a move to PostgreSQL the copy in SQLite has the
    same id."""
    return f"{server} {connection.vendor}"


def own_data_folder(server: str) -> None:
    """Marks the data folder as that of this database, whatever it was. Raises OSError."""
    path = ensure_folder() / OWNER_FILE
    temporary = path.with_name(f".{OWNER_FILE}.{uuid4().hex}")
    try:
        temporary.write_text(f"{describe_owner(server)}\n", encoding="utf-8")
        temporary.chmod(0o644)  # the server may run as another user than the command that writes it; it is no secret
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def has_stored_files() -> bool:
    return next(open_store("").list_files(""), None) is not None


def explain_other_owner(owner: str, has_projects: bool) -> str:
    """Returns what happened, which setting is probably wrong, and what to do if it is right."""
    folder, is_moved = get_data_root(), owner.endswith(" postgresql")
    cause = "Check DATABASE_URL."
    if connection.vendor == "sqlite":
        hint = "The files are of a PostgreSQL database: set" if is_moved else "If the server uses another one, set"
        cause = f"The database is {connection.settings_dict['NAME']}. {hint} DATABASE_URL."
    remedy = f"If it is the right database, remove {folder / OWNER_FILE} and start again."
    if not has_projects:
        remedy = "If the database is lost, restore a backup into a new folder. To begin without these files, move "
        remedy += f"{', '.join(KINDS)} and {OWNER_FILE} out of the folder."
    return f"{folder} has the files of another database, and the server would delete them. {cause} {remedy}"


def start_move(target: str) -> StorageLocation:
    """Lets processes write to another place. Raises StorageRefusedError if it cannot be used."""
    row = load_location()
    if row.moving_to is not None and row.moving_to != target:
        raise StorageRefusedError(f"The files are being moved to {describe(row.moving_to)}. Finish that first.")
    if row.moved_from is not None and row.url != target:
        raise StorageRefusedError(f"The last files are being moved to {describe(row.url)}. Finish that first.")
    prepare_place(target, row.server)
    if row.url != target:
        (get_data_root() / MOVE_MARKER).touch()
        row.moving_to = target
        row.save()
    known_location.clear()
    return row


def switch_move(row: StorageLocation) -> None:
    """No process may write to the old place any more. Returns when all of them know it."""
    row.url, row.moving_to, row.moved_from = row.moving_to or "", None, row.url
    row.save()
    known_location.clear()
    time.sleep(2 * KNOWN_SECONDS)


def finish_move(row: StorageLocation) -> None:
    row.moved_from = None
    row.save()
    known_location.clear()
    if not row.url:
        (get_data_root() / MOVE_MARKER).unlink(missing_ok=True)


def probe_bucket() -> str:
    """Returns "ok", or what is wrong, without names: this is shown to anybody."""
    store = get_store()
    if not isinstance(store, BucketStore):
        return "ok"
    try:
        store.read_owner()
    except OSError:
        log.exception("The bucket does not answer.")
        return "the bucket does not answer, see the server's log"
    return "ok"


def describe(url: str) -> str:
    return url or f"the data folder {get_data_root()}"
