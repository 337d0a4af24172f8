"""What a place for stored files can do. `disk.py` is a folder, `bucket.py` an S3-compatible bucket.

Every method raises OSError if the place does not answer, FileNotFoundError if it has no such file.
"""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredFile:
    """`modified_at` is in seconds since 1970."""

    key: str
    bytes: int
    modified_at: float


class Store(Protocol):
    """Files by key. A reader sees complete files only, and a file never changes."""

    @property
    def url(self) -> str:
        """ "" is the data folder."""

    def write(self, key: str, *, is_derived: bool = False) -> AbstractContextManager[Path]:
        """Yields a path for the bytes, which are stored if the block succeeds and has written them. Afterwards they
        survive a power cut, unless `is_derived`: they can be computed again."""

    def put(self, path: Path, key: str) -> None:
        """Moves a file of the data volume to its key, also if the key has one. It survives a power cut."""

    def add_copy(self, path: Path, key: str) -> None:
        """Copies a file to its key, durably."""

    def fetch(self, key: str) -> Path:
        """Returns the path of a file on this machine. The file can be opened for at least 15 minutes."""

    def checkout(self, key: str) -> AbstractContextManager[Path]:
        """Yields the path of the bytes as they are stored, without a cache."""

    def find(self, key: str) -> StoredFile | None: ...

    def measure(self, keys: Collection[str], prefix: str) -> dict[str, int]:
        """Returns the sizes of the existing ones of these files, which all have the prefix."""

    def touch(self, key: str) -> bool:
        """Makes a file recent for the sweep. Returns False if that is not possible without its bytes."""

    def copy(self, source: str, target: str) -> None: ...

    def delete(self, key: str) -> None:
        """Does nothing if there is no such file."""

    def delete_all(self, prefix: str) -> None: ...

    def list_files(self, prefix: str) -> Iterator[StoredFile]:
        """Yields the files whose keys have the prefix, which ends in a slash, or is empty for all kinds."""

    def list_folders(self, prefix: str) -> list[str]:
        """Returns the next parts of the keys with the prefix, which ends in a slash."""
