"""Stores files in an S3-compatible bucket, with copies in a cache on this machine.

An object appears when its upload is complete, also one in parts, so a reader sees complete files only. Endpoint,
region and credentials come from the environment, as for other programs of S3 (AWS_ACCESS_KEY_ID and so on).
"""

import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from rollouts.storage.cache import FileCache
from rollouts.storage.keys import KINDS
from rollouts.storage.store import StoredFile
from rollouts.telemetry import STORAGE_SECONDS

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

PART_BYTES: Final = 8 << 20  # of an upload in parts
PARALLEL_PARTS: Final = 4
DOWNLOAD_PART_BYTES: Final = 256 << 20
MAX_SINGLE_LOOKUPS: Final = 20  # files whose sizes are asked for one by one, before all are listed
CONNECT_SECONDS: Final = 5
QUICK_SECONDS: Final = 8
TRANSFER_SECONDS: Final = 120  # of one request: a part, or a small file
RETRIES: Final = 3
RETRY_SECONDS: Final = 15
OWNER_KEY: Final = "server"  # has the id of the server whose files these are
CODE: Final = re.compile(r"<Code>(\w+)</Code>")
NO_ANSWER: Final = "no answer, or the connection was lost"
MESSAGES: Final = {
    "NoSuchBucket": "there is no such bucket",
    "AccessDenied": "the credentials do not allow this",
    "InvalidAccessKeyId": "AWS_ACCESS_KEY_ID is not known there",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY is wrong",
    "InvalidToken": "AWS_SESSION_TOKEN is not valid",
    "ExpiredToken": "the credentials have expired",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION",
}


class BucketError(OSError):
    """The bucket does not answer, or refuses. `strerror` says why."""


@dataclass(frozen=True, slots=True)
class BucketStore:
    """A store at `s3://bucket/prefix`."""

    url: str
    cache: FileCache

    @property
    def client(self) -> "S3Store":
        """For the bytes of files."""
        return open_client(self.url, os.getpid(), TRANSFER_SECONDS)

    @property
    def quick_client(self) -> "S3Store":
        """For requests without bytes: a transaction of the database may wait for them."""
        return open_client(self.url, os.getpid(), QUICK_SECONDS)

    @contextmanager
    def write(self, key: str, *, is_derived: bool = False) -> Iterator[Path]:
        with self.cache.create_temporary() as path:
            yield path
            if path.exists():
                self.put(path, key)

    def put(self, path: Path, key: str) -> None:
        self.add_copy(path, key)
        self.cache.keep(path, key)

    def add_copy(self, path: Path, key: str) -> None:
        import obstore

        started = perf_counter()
        options: dict[str, Any] = {"chunk_size": PART_BYTES, "max_concurrency": PARALLEL_PARTS}
        self.call(key, lambda: obstore.put(self.client, key, path, **options))
        STORAGE_SECONDS.labels(key.partition("/")[0]).observe(perf_counter() - started)

    def fetch(self, key: str) -> Path:
        return self.cache.fetch(key, lambda path: self.download(key, path))

    @contextmanager
    def checkout(self, key: str) -> Iterator[Path]:
        with self.cache.create_temporary() as path:
            self.download(key, path)
            yield path

    def download(self, key: str, path: Path) -> None:
        """Reads the object in parts, because the time of a request is limited and a file may be large."""
        with path.open("wb") as file:
            meta = self.download_part(key, file)
            while file.tell() < meta["size"]:
                self.download_part(key, file, meta)
        modified_at = meta["last_modified"].timestamp()
        os.utime(path, (modified_at, modified_at))  # a version of the file, for caches

    def download_part(self, key: str, file: BinaryIO, known: Any = None) -> Any:
        """Appends the next bytes to the file, and returns the object's facts. `known` are those from its first part."""
        import obstore

        start = file.tell()
        end = start + DOWNLOAD_PART_BYTES
        options: Any = {"range": (start, min(end, known["size"])), "if_match": known["e_tag"]} if known else {}
        result = self.call(key, lambda: obstore.get(self.client, key, options=options))
        pieces = iter(result.stream(min_chunk_size=PART_BYTES))
        while file.tell() < end and (piece := self.call(key, lambda: next(pieces, None))):
            file.write(piece)
        size = result.meta["size"]
        if file.tell() == start and start < size:
            raise BucketError(errno.EIO, f"{self.url} sent {start:,} of {size:,} bytes", key)
        return result.meta

    def find(self, key: str) -> StoredFile | None:
        import obstore

        try:
            return to_stored_file(self.call(key, lambda: obstore.head(self.quick_client, key)))
        except FileNotFoundError:
            return None

    def measure(self, keys: Collection[str], prefix: str) -> dict[str, int]:
        wanted = set(keys)
        if len(wanted) <= MAX_SINGLE_LOOKUPS:
            found = (self.find(key) for key in sorted(wanted))
            return {file.key: file.bytes for file in found if file}
        return {file.key: file.bytes for file in self.list_files(prefix) if file.key in wanted}

    def touch(self, key: str) -> bool:
        """Copies the object away and back, within the bucket: nothing else changes its time."""
        temporary = f"bodies/.touched/{uuid4().hex}"  # after a kill, the sweep removes it
        try:
            self.copy(key, temporary)
            self.copy(temporary, key)
            self.delete(temporary)
        except OSError:  # the object is gone, or too large to be copied
            return False
        return True

    def copy(self, source: str, target: str) -> None:
        import obstore

        self.call(source, lambda: obstore.copy(self.client, source, target))

    def delete(self, key: str) -> None:
        import obstore

        try:
            self.call(key, lambda: obstore.delete(self.quick_client, key))
        except FileNotFoundError:
            pass
        self.cache.delete(key)

    def delete_all(self, prefix: str) -> None:
        import obstore

        keys = [file.key for file in self.list_files(prefix)]
        if keys:
            self.call(prefix, lambda: obstore.delete(self.quick_client, keys))
        self.cache.delete_all(prefix)

    def list_files(self, prefix: str) -> Iterator[StoredFile]:
        import obstore

        for folder in [prefix] if prefix else [f"{kind}/" for kind in KINDS]:
            pages = iter(self.call(folder, lambda folder=folder: obstore.list(self.quick_client, folder)))  # type: ignore[misc]
            while page := self.call(folder, lambda pages=pages: next(pages, None)):  # type: ignore[misc]
                yield from map(to_stored_file, page)

    def create(self, key: str, data: bytes) -> None:
        """Stores an object unless there is one already."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def put() -> None:
            with suppress(AlreadyExistsError):
                obstore.put(self.client, key, data, mode="create")

        self.call(key, put)

    def read(self, key: str, start: int = 0) -> bytes:
        """Returns the bytes of a small object, from `start` on, without the cache."""
        import obstore

        return bytes(self.call(key, lambda: obstore.get(self.client, key).bytes()))[start:]

    def list_folders(self, prefix: str) -> list[str]:
        import obstore

        found = self.call(prefix, lambda: obstore.list_with_delimiter(self.quick_client, prefix))
        return [folder.rstrip("/").rpartition("/")[2] for folder in found["common_prefixes"]]

    def try_out(self) -> None:
        """Writes and deletes an object. Raises BucketError, and ValueError if the URL is none of a bucket."""
        import obstore

        parts = urlsplit(self.url)
        if parts.scheme != "s3" or not parts.netloc:
            raise ValueError(f"{self.url} is not a bucket, write s3://BUCKET/PREFIX")
        key = f"bodies/.tried/{uuid4().hex}"  # after a kill, the sweep removes it
        self.call(key, lambda: obstore.put(self.quick_client, key, b"Rolloutdeck tries whether it can write."))
        self.delete(key)

    def claim(self, server: str) -> str:
        """Marks the place as that of a server unless it is marked already. Returns whose it is."""
        self.create(OWNER_KEY, server.encode())
        return self.read_owner()

    def read_owner(self) -> str:
        """Raises FileNotFoundError if the place has no owner."""
        import obstore

        data = self.call(OWNER_KEY, lambda: obstore.get(self.quick_client, OWNER_KEY).bytes())
        return bytes(data).decode("ascii", "replace")

    def call(self, key: str, work: Callable[[], T]) -> T:
        """Raises BucketError or FileNotFoundError for what the library raises."""
        from obstore.exceptions import BaseError

        try:
            return work()
        except (BaseError, OSError, RuntimeError) as error:
            code = CODE.search(str(error))
            if isinstance(error, FileNotFoundError) and not (code and code[1] == "NoSuchBucket"):
                raise FileNotFoundError(errno.ENOENT, f"It is not in {self.url}", key) from error
            reason = MESSAGES.get(code[1], code[1]) if code else NO_ANSWER
            if not code and not os.environ.get("AWS_ACCESS_KEY_ID"):
                reason += "; AWS_ACCESS_KEY_ID is not set"
            raise BucketError(errno.EIO, f"{self.url}: {reason}", key) from error


def to_stored_file(meta: Any) -> StoredFile:
    return StoredFile(meta["path"], meta["size"], meta["last_modified"].timestamp())


@lru_cache(maxsize=8)
def open_client(url: str, process: int, seconds: float) -> "S3Store":
    """Returns the client of this process: its threads do not survive a fork. Makes no request."""
    from obstore.store import S3Store

    for name in [name for name, value in os.environ.items() if name.startswith("AWS_") and not value]:
        del os.environ[name]  # empty is the same as not set, as for our own variables
    # The standard environment variables; obstore reads the others itself.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    if not (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")):
        options["region"] = "us-east-1"
    return S3Store.from_url(
        url,
        client_options={
            "allow_http": urlsplit(endpoint).scheme == "http",
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=seconds),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
        **options,
    )
