"""Deletes a trainer's files once the server has received and indexed them. Off unless the user asks for it.

A file is deleted only if all of this holds: it is a complete file that the watch sent, and not the newest of its
folder; the server has exactly these bytes, and has indexed every row of them; no replayable step needs the file; it is
a regular file inside a watched folder; and its size, time, inode and bytes are those that were sent.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rolloutdeck.trainer_api import find_steps
from rolloutdeck.watch.file_endings import hash_open_file
from rolloutdeck.watch.file_parts import FilePart, Stamp, build_file_stamp
from rolloutdeck.watch.follower import Follower, find_closed_files
from rolloutdeck.watch.upload import UploadTarget

PRUNE_SECONDS = 5.0  # between two rounds
MIN_AGE_SECONDS = 60.0  # since the last change of a file
MAX_REQUESTED_FILES = 50  # of one round, so that new files need not wait


@dataclass
class SourcePruner:
    """Deletes the files of one run. With `is_dry_run` it only prints them. `pending_count` counts the files that the
    server has not indexed yet, at the last round."""

    follower: Follower
    target: UploadTarget
    get_folders: Callable[[], Sequence[Path]]
    on_message: Callable[[str], None]
    is_dry_run: bool = False
    pending_count: int = 0
    skipped_stamps: dict[str, Stamp] = field(default_factory=dict)  # files that are not checked again until they change
    next_round_at: float = 0.0

    def prune(self) -> int:
        """Deletes the files that are due. Returns their number. Raises RetryLaterError or ActionRequiredError."""
        if time.monotonic() < self.next_round_at:
            return 0
        self.pending_count, deleted, freed, requested = 0, 0, 0, 0
        for part in self.find_candidates():
            if requested >= MAX_REQUESTED_FILES:
                self.pending_count += 1
                continue
            requested += 1
            if not self.check_indexed(part):
                continue
            if self.is_dry_run:
                self.on_message(f"{part.file.path} would be deleted.")
                self.skipped_stamps[part.file.source] = part.stamp
            elif delete_unchanged_file(part, [root.path for root in self.follower.roots]):
                deleted += 1
                freed += part.size
            else:
                self.skipped_stamps[part.file.source] = part.stamp
        self.next_round_at = time.monotonic() + PRUNE_SECONDS  # a round that failed is repeated in the next turn
        if deleted:
            files = "1 file" if deleted == 1 else f"{deleted:,} files"
            self.on_message(f"{self.target.name}: deleted {files} that the server has indexed ({freed / 1e6:,.1f} MB).")
        return deleted

    def find_candidates(self) -> Iterator[FilePart]:
        """Yields the files that were sent and have not changed since, but the newest of each folder."""
        files = self.follower.find_complete_files()
        needed = self.find_needed_files()
        closed = find_closed_files([(file.path, file.kind) for file in files])
        for file in files:
            sent = self.follower.state.files.get(file.source)
            if sent is None or not sent.sha256 or file.path not in closed or file.path in needed:
                continue
            try:
                stamp = build_file_stamp(file.path.lstat())
            except OSError:
                continue
            is_old = time.time() - stamp[1] / 1e9 >= MIN_AGE_SECONDS
            if stamp == tuple(sent.stamp) and is_old and self.skipped_stamps.get(file.source) != stamp:
                yield FilePart(file, sent.attempt, sent.sha256, stamp[0], stamp)

    def find_needed_files(self) -> set[Path]:
        """Returns the files of steps that a trainer can load again: a pin may request their bytes later."""
        needed: set[Path] = set()
        for folder in self.get_folders():
            for location in find_steps(folder) if folder.exists() else ():
                parent = location.path.parent if location.path.is_file() else location.path
                needed.update(parent / name for name in location.files)
                needed.add(location.path)
        return needed

    def check_indexed(self, part: FilePart) -> bool:
        """Returns whether the server has this file and has indexed all of its rows.

        Counts the file as pending if it will be indexed later. If it never will, prints that it stays, and skips it
        from then on.
        """
        if not self.target.has_part(part):
            self.skipped_stamps[part.file.source] = part.stamp
            self.on_message(f"{part.file.path} stays: the server does not have it with these options.")
            return False
        summary = self.target.summarize_source(part.file.source)
        if summary["waiting"]:
            self.pending_count += 1
            return False
        if summary["failed"] or summary["rejected"] or not summary["rows"]:
            self.skipped_stamps[part.file.source] = part.stamp
            self.on_message(f"{part.file.path} stays: the server could not index all of its rows.")
            return False
        return True


def delete_unchanged_file(part: FilePart, roots: Sequence[Path]) -> bool:
    """Deletes a file if it is inside a root and has the stamp and the bytes that were sent. Returns whether it did.

    The folder is opened first, and the file is checked and deleted relative to it, so a link that replaces a folder
    meanwhile leads nowhere.
    """
    try:
        folder_path = part.file.path.parent.resolve(strict=True)
        if not any(folder_path.is_relative_to(root.resolve(strict=True)) for root in roots if root.exists()):
            return False
        folder = os.open(folder_path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    name = part.file.path.name
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            is_same = hash_open_file(file)[0] == part.sha256
            opened = os.fstat(file.fileno())
            present = os.stat(name, dir_fd=folder, follow_symlinks=False)
            unchanged = build_file_stamp(opened) == build_file_stamp(present) == part.stamp
            if not (is_same and unchanged and stat.S_ISREG(present.st_mode)):
                return False
            os.unlink(name, dir_fd=folder)
            return True
    except OSError:
        return False
    finally:
        os.close(folder)
