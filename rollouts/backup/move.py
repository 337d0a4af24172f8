"""Moves the stored files of a running server to another place: from the data folder to a bucket, or back.

1. `move_files` copies while processes still write to the old place. From now on they read from both.
2. The processes are restarted with the new place in their settings. They write to it at once.
3. `move_files` again, with these settings: no process may write to the old place any more; the rest is copied, each
   file that a row names is found in the new place with its size, and only then the old place is no longer read.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from django.conf import settings

from rollouts.integrity import iterate_references, list_image_files
from rollouts.storage import Store, finish_move, open_store, start_move, switch_move

Progress = Callable[[int, int, int], None]  # files done, files in total, bytes copied
THREADS = 8
MAX_PASSES = 5  # while the server writes


@dataclass(slots=True)
class MoveResult:
    """`copied` files with `bytes` were copied by this call. `lost` are named by rows, and neither place has them.
    `is_finished`: the old place is not needed any more."""

    copied: int = 0
    bytes: int = 0
    lost: list[str] = field(default_factory=list)
    is_finished: bool = False


def move_files(target: str, progress: Progress = lambda *_: None) -> MoveResult:
    """Moves all files to `target`: "" is the data folder. Can be called again at any time; what is there stays.

    Raises StorageRefusedError and OSError.
    """
    result, row = MoveResult(), start_move(target)
    if row.url != target:
        copy_new_files(open_store(row.url), open_store(target), result, progress)
        if target != settings.STORAGE_URL:
            return result
        switch_move(row)
    if row.moved_from is not None:
        if not copy_new_files(open_store(row.moved_from), open_store(target), result, progress):
            return result
        finish_move(row)
    result.is_finished = True
    return result


def copy_new_files(source: Store, target: Store, result: MoveResult, progress: Progress) -> bool:
    """Copies until a look at rows and files finds nothing to copy. Returns whether it came to that. Raises OSError."""
    for _pass in range(MAX_PASSES):
        result.lost, todo = find_new_files(source, target)
        if not todo:
            return True
        with ThreadPoolExecutor(THREADS) as pool:
            for done, size in enumerate(pool.map(lambda key: copy_file(source, target, key), todo)):
                progress(done, len(todo), result.bytes)
                result.copied, result.bytes = result.copied + 1, result.bytes + size
    return False


def find_new_files(source: Store, target: Store) -> tuple[list[str], list[str]]:
    """Returns the files that rows name and neither place has, and those that only the old place has. Rows are read
    before the files: a file that is removed meanwhile is not copied."""
    names = {reference.name for reference in iterate_references()}
    names |= {reference.name for reference in list_image_files()}
    old = {file.key for file in source.list_files("")}
    new = {file.key for file in target.list_files("")}  # complete files only, also of a move that was killed
    return sorted(names - old - new), sorted(names & old - new)


def copy_file(source: Store, target: Store, key: str) -> int:
    """Returns the number of bytes, 0 if the server has removed the file meanwhile. Raises OSError."""
    try:
        with source.checkout(key) as path:
            size = path.stat().st_size
            target.add_copy(path, key)
    except FileNotFoundError:
        return 0
    copy = target.find(key)
    if copy is not None and copy.bytes != size:
        raise OSError(errno.EIO, f"the copy has {copy.bytes:,} bytes instead of {size:,}", key)
    return size
