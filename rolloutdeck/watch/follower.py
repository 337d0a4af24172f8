"""The parts of a growing folder that can be sent now: complete files, and the complete lines of growing files.

Nothing here talks to a server. `Follower.find_changed` finds candidates, `Follower.read_parts` reads them, and
`Follower.mark_sent` records them once the server has them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.lib import get_path_type, read_safe_stat
from rolloutdeck.trainer_api import FileKind, list_kinds
from rolloutdeck.watch import file_endings
from rolloutdeck.watch.compression import read_plain_size, remove_compression_ending, remove_compression_suffix
from rolloutdeck.watch.file_parts import FilePart, Stamp, build_file_stamp
from rolloutdeck.watch.scan import (
    MAX_SOURCE_LENGTH,
    build_source,
    detect_file_kind,
    detect_split,
    explain_missing_step,
    find_files,
    has_trainer_samples,
)
from rolloutdeck.watch.state import SentFile, WatchState
from rolloutdeck.watch.types import DumpFile, ScanOptions

QUIET_SECONDS = 2.0  # a complete file without a successor is sent after this long without a change


@dataclass(frozen=True)
class WatchedFolder:
    """A folder to follow. `split` is set if it is known from elsewhere; `deep` includes subfolders."""

    path: Path
    split: str = ""
    deep: bool = True


@dataclass(frozen=True)
class ChangedFile:
    """A file that changed. `closed`: it is final, since it did not change after the trainer wrote the next file."""

    file: DumpFile
    stamp: Stamp
    closed: bool = False


class Follower:
    """The folders of one run. `state` records what was sent; `options` are the user's options for the files."""

    def __init__(
        self,
        roots: Sequence[WatchedFolder],
        base: Path,
        state: WatchState,
        options: ScanOptions,
        on_message: Callable[[str], None] = print,
    ) -> None:
        self.roots, self.base, self.state, self.options, self.on_message = roots, base, state, options, on_message
        self._kinds = list_kinds(options.format)
        self._known_kinds: dict[Path, tuple[Stamp, FileKind | None]] = {}
        self._stable_since: dict[str, tuple[Stamp, float]] = {}
        self._truncated: dict[str, Stamp] = {}
        self._copies: dict[Path, Stamp] = {}  # compressed files of which all lines were sent before
        self._skipped_lines: set[tuple[str, int]] = set()  # (source, offset) of lines that are too long
        self._skipped_links: set[Path] = set()  # links that are unsafe to follow
        self._unreadable_folders: set[str] = set()  # folders that were reported because they can't be read
        self._files_without_step: set[Path] = set()  # files that were reported because they need a step
        self.known_hashes: dict[tuple[str, Stamp], str] = {}  # of complete files, while a recovery is repeated
        self.pending_count = 0  # files that may soon be complete, at the last scan; not those that stay truncated
        self.signature = 0  # changes whenever any file does

    def find_changed(self) -> list[ChangedFile]:
        """Returns the files that changed since they were sent and can be read now, in the order of their writing."""
        entries = self._list_candidates()
        closed_files = _select_closed_files(entries)
        paths = {path for path, *_ in entries}
        self.signature = hash(tuple((entry[0], entry[1]) for entry in entries))
        self.pending_count, changed = 0, []
        for path, stamp, kind in entries:
            source = build_source(path, self.base)
            sent = self.state.files.get(source)
            if (sent and sent.stamp == stamp) or not stamp[0] or len(source) > MAX_SOURCE_LENGTH:
                continue
            plain = self._find_sent_plain(source)
            if plain and (remove_compression_suffix(path) in paths or self._is_sent_copy(path, stamp, plain)):
                continue
            is_stable, is_closed = self._is_unchanged(source, stamp), path in closed_files
            if not kind.grows and not self._is_ready(source, stamp, is_closed, is_stable):
                self.pending_count += self._truncated.get(source) != stamp or is_closed
                continue
            dump_file = self._build_dump_file(path, source, kind)
            changed.append(ChangedFile(dump_file, stamp, is_closed and is_stable))
        changed.sort(key=_build_writing_order)
        return changed

    def _find_sent_plain(self, source: str) -> SentFile | None:
        """Returns what was sent of the file that was compressed to `source`; None for other files."""
        uncompressed = remove_compression_ending(source)
        return self.state.files.get(uncompressed) if uncompressed != source else None

    def _is_sent_copy(self, path: Path, stamp: Stamp, plain: SentFile) -> bool:
        """Whether a compressed file has nothing new. A growing file may have grown after it was read for the last time,
        but not if the copy is as long, or has its modification time, as those of gzip and zstd."""
        is_growing = bool(plain.head)
        has_same_time = plain.stamp[1] == stamp[1] and plain.stamp[0] == plain.offset
        if not is_growing or has_same_time or self._copies.get(path) == stamp:
            return True
        with suppress(OSError):
            if read_plain_size(path) == plain.offset:
                self._copies[path] = stamp
        return self._copies.get(path) == stamp

    def find_complete_files(self) -> list[DumpFile]:
        """Returns all complete files, sent or not, in the order of their writing."""
        entries = [entry for entry in self._list_candidates() if not entry[2].grows and entry[1][0]]
        entries.sort(key=lambda entry: (entry[1][1], entry[2].step(entry[0]) or 0))
        return [self._build_dump_file(path, build_source(path, self.base), kind) for path, _, kind in entries]

    def find_growing_files(self) -> list[DumpFile]:
        """Returns all files that rows are appended to, sent or not."""
        entries = [entry for entry in self._list_candidates() if entry[2].grows and entry[1][0]]
        return [self._build_dump_file(path, build_source(path, self.base), kind) for path, _, kind in entries]

    def find_incomplete_lines(self) -> list[str]:
        """Returns the sources of growing files that end in the middle of a line, which is not sent."""
        sources = []
        for file in self.find_growing_files():
            sent = self.state.files.get(file.source)
            with suppress(OSError):
                if file.path.stat().st_size > (sent.offset if sent else 0):
                    sources.append(file.source)
        return sources

    def _list_candidates(self) -> list[tuple[Path, Stamp, FileKind]]:
        entries = list(self._list_files())
        if self.options.format or not has_trainer_samples(kind for *_, kind in entries):
            return entries
        return [entry for entry in entries if not entry[2].guessed]

    def _list_files(self) -> Iterator[tuple[Path, Stamp, FileKind]]:
        for root in self.roots:
            paths = find_files(root.path, self._print_unreadable) if root.deep else _list_files_in(root.path)
            for path in paths:
                try:
                    if (stat := read_safe_stat(path)) is None:
                        self._print_skipped(path)
                        continue
                    stamp = build_file_stamp(stat)
                    kind = self._detect_kind(path, stamp)
                except OSError:  # gone meanwhile, or not readable yet
                    continue
                if kind and not (kind.missing_step and kind.step(path) is None):
                    yield path, stamp, kind
                else:
                    self._print_missing_step(path, stamp)

    def _print_skipped(self, path: Path) -> None:
        if path not in self._skipped_links and path.is_symlink():
            self._skipped_links.add(path)
            self.on_message(f"{path} is skipped: it is a link to a file of another user.")

    def _print_unreadable(self, error: OSError) -> None:
        folder = str(error.filename)
        if folder not in self._unreadable_folders:
            self._unreadable_folders.add(folder)
            self.on_message(f"{folder} can't be read: {error.strerror}.")

    def _print_missing_step(self, path: Path, stamp: Stamp) -> None:
        """Prints once why a file is skipped whose step is unknown, unless it was sent when the step was known."""
        if path in self._files_without_step or not (reason := explain_missing_step(path, self._kinds)):
            return
        sent = self.state.files.get(build_source(path, self.base))
        if not sent or sent.stamp != stamp:
            self._files_without_step.add(path)
            self.on_message(f"{path} is skipped. Such files are {reason}.")

    def _detect_kind(self, path: Path, stamp: Stamp) -> FileKind | None:
        known_stamp, kind = self._known_kinds.get(path, (None, None))
        if known_stamp and (
            (kind and known_stamp[2] == stamp[2] and known_stamp[0] <= stamp[0]) or known_stamp == stamp
        ):
            return kind
        kind = detect_file_kind(path, self._kinds, is_format_given=bool(self.options.format))[0]
        self._known_kinds[path] = (stamp, kind)
        return kind

    def _build_dump_file(self, path: Path, source: str, kind: FileKind) -> DumpFile:
        if kind.content == "metrics":
            step_kind = self.options.step_kind("metrics", kind.step_kind)
            return DumpFile(path, source, kind, "train", kind.step(path), step_kind)
        split = self.options.split or kind.split(path) or self._choose_split(path, source, kind)
        step_kind = self.options.step_kind(split, kind.step_kind)
        return DumpFile(path, source, kind, split, kind.step(path), step_kind, self.options.columns)

    def _choose_split(self, path: Path, source: str, kind: FileKind) -> str:
        known_split = next((root.split for root in self.roots if root.split and root.path in path.parents), "")
        folder = source.rpartition("/")[0]
        if known_split or folder in self.state.splits:
            return known_split or self.state.splits[folder]
        file = DumpFile(path, source, kind, "", kind.step(path))
        split, reason = detect_split(path.parent, self.base, [(file, detect_file_kind(path, [kind])[1])], self.options)
        if reason:  # stored: the split of a folder must not change with more files
            self.state.splits[folder] = split
            hint = "Set --split eval or --split train to change it."
            self.on_message(f"{path.parent} is treated as {split}: {reason}. {hint}")
        return split

    def _is_unchanged(self, source: str, stamp: Stamp) -> bool:
        last_stamp, since = self._stable_since.get(source, (None, 0.0))
        if last_stamp != stamp:
            self._stable_since[source] = stamp, time.monotonic()
            return False
        return time.monotonic() - since >= QUIET_SECONDS

    def _is_ready(self, source: str, stamp: Stamp, is_closed: bool, is_stable: bool) -> bool:
        """Whether the file seems final. A file that was truncated before must be closed and unchanged."""
        return is_closed and is_stable if self._truncated.get(source) == stamp else is_closed or is_stable

    def read_parts(self, candidate: ChangedFile) -> Iterator[FilePart]:
        """Reads a candidate. The caller sends each part and calls `mark_sent` before it takes the next one.

        Raises OSError if the file can't be read. A file that changes meanwhile yields nothing and is found again.
        """
        with candidate.file.path.open("rb") as opened:
            if os.fstat(opened.fileno()).st_ino != candidate.stamp[2]:  # replaced, maybe by a link that was not checked
                self.pending_count += 1
            elif candidate.file.kind.grows:
                yield from self._read_new_lines(opened, candidate.file)
            else:
                yield from self._read_complete_file(opened, candidate)

    def _read_complete_file(self, opened: BinaryIO, candidate: ChangedFile) -> Iterator[FilePart]:
        file, stamp = candidate.file, candidate.stamp
        if not candidate.closed and not file_endings.is_complete_file(opened, stamp[0], file.path.suffix):
            if file.source not in self._truncated:
                self.on_message(f"{file.path} {file_endings.describe_truncation(file.path)}; waiting for the rest.")
            self.pending_count += 1
            self._truncated[file.source] = stamp
            return
        sha256, body = file_endings.hash_open_file(opened)
        if build_file_stamp(os.fstat(opened.fileno())) != stamp or build_file_stamp(file.path.stat()) != stamp:
            self.pending_count += 1
            return
        sent = self.state.files.get(file.source)
        if sent and sent.sha256 == sha256:  # same bytes, new modification time
            sent.stamp = stamp
            return
        if plain := self._find_sent_plain(file.source):  # its last lines may be new; the server merges the others
            yield FilePart(file, plain.attempt, sha256, stamp[0], stamp, body)
            return
        if stamp[1] < self.state.attempt_start:  # written by the previous attempt
            yield FilePart(file, self.state.previous_attempt, sha256, stamp[0], stamp, body)
            return
        was_sent = sent and sent.sha256 and sent.attempt == self.state.attempt  # "": the server refused it
        if was_sent and file.step is not None and file.kind.content == "samples":
            self._open_attempt_if_rewritten(file, file.step, stamp[1])
        yield FilePart(file, self.state.attempt, sha256, stamp[0], stamp, body)

    def _open_attempt_if_rewritten(self, file: DumpFile, step: int, attempt_start: int = 0) -> None:
        """Starts a new attempt if a sent step is sent again after a later step was sent."""
        if step < self.state.last_steps.get(build_step_axis(file), step):
            self.state.next_attempt(attempt_start)
            self.on_message(f"{file.source}: step {step} was written again, so this is attempt {self.state.attempt}.")

    def _read_new_lines(self, opened: BinaryIO, file: DumpFile) -> Iterator[FilePart]:
        sent = self.state.files.get(file.source)
        offset, generation = (sent.offset, sent.generation) if sent else (0, 0)
        is_new_file = bool(sent) and not file_endings.is_continuation(opened, sent)  # type: ignore[arg-type]
        if is_new_file:
            offset, generation = 0, generation + 1
        while True:
            stamp = build_file_stamp(os.fstat(opened.fileno()))
            lines = file_endings.read_complete_lines(opened, offset)
            if not lines and (end := file_endings.skip_long_line(opened, offset)) > offset:
                self._skip_line(opened, file, offset, end, is_new_file=is_new_file)
                offset = end
                continue
            if lines and not lines.strip():  # the line break of a last line that was sent without one
                self._mark_read(opened, file, offset + len(lines), is_new_file=is_new_file)
                offset += len(lines)
                continue
            lines = lines or file_endings.read_last_line(opened, offset, stamp[0])
            if lines and not lines.endswith(b"\n") and not self._is_unchanged(file.source, stamp):
                self.pending_count += 1  # the trainer may still write this line
                return
            if not lines:
                self._remember_stamp(file, stamp, offset, is_new_file)
                return
            if is_new_file and sent and sent.attempt == self.state.attempt:
                first_step = file.kind.line_step(lines.partition(b"\n")[0])
                if first_step is not None:  # complete files written before it are of the previous attempt
                    self._open_attempt_if_rewritten(file, first_step, sent.stamp[1] + 1)
            is_new_file = False
            last_step = file.kind.line_step(lines.rstrip(b"\n").rpartition(b"\n")[2])
            sha256 = hashlib.sha256(lines).hexdigest()
            ends = file_endings.digest_file_ends(opened, offset + len(lines))
            attempt, size = self.state.attempt, len(lines)
            yield FilePart(file, attempt, sha256, size, stamp, lines, offset, generation, last_step, ends)
            offset += size

    def _skip_line(self, opened: BinaryIO, file: DumpFile, offset: int, end: int, *, is_new_file: bool) -> None:
        """Says once that a line is too long, and goes on behind it."""
        if (place := (file.source, offset)) not in self._skipped_lines:
            self._skipped_lines.add(place)
            size = f"{(end - offset) / 1e6:,.0f} MB"
            self.on_message(f"{file.source}: a line of {size} is skipped, because it is too long for one sample.")
        self._mark_read(opened, file, end, is_new_file=is_new_file)

    def _mark_read(self, opened: BinaryIO, file: DumpFile, end: int, *, is_new_file: bool) -> None:
        """Records that the bytes before `end` need not be sent."""
        sent = self.state.files.get(file.source)
        if sent and not is_new_file:
            sent.offset = end
            sent.head, sent.tail = file_endings.digest_file_ends(opened, end)

    def _remember_stamp(self, file: DumpFile, stamp: Stamp, offset: int, is_new_file: bool) -> None:
        """Stores the stamp of a growing file without a new complete line, so that it is not read until it changes."""
        sent = self.state.files.get(file.source)
        if sent and not is_new_file and sent.offset == offset:
            sent.stamp = stamp

    def mark_sent(self, part: FilePart, *, is_rejected: bool = False) -> None:
        """Records that the server has this part, or will never accept it (`is_rejected`)."""
        dump_file = part.file
        sent_file = SentFile(part.stamp, part.attempt, "" if is_rejected else part.sha256, dump_file.step)
        if part.offset is not None and part.body is not None:
            sent_file.offset, sent_file.generation = part.offset + part.size, part.generation
            # The real stamp is stored by the scan that finds no further line.
            sent_file.stamp = (sent_file.offset, 0, part.stamp[2])
            sent_file.head, sent_file.tail = part.ends
        self.state.files[dump_file.source] = sent_file
        self._stable_since.pop(dump_file.source, None)
        self._truncated.pop(dump_file.source, None)
        last_step = part.last_step if dump_file.step is None else dump_file.step
        if last_step is not None and part.attempt == self.state.attempt:
            axis = build_step_axis(dump_file)
            self.state.last_steps[axis] = max(last_step, self.state.last_steps.get(axis, last_step))


def build_step_axis(file: DumpFile) -> str:
    """Returns the axis of the file's steps. Steps are compared only within one axis."""
    has_samples = file.step is not None and file.kind.content == "samples"
    return f"{file.split if has_samples else 'metrics'}/{file.step_kind}"


def _build_writing_order(changed: ChangedFile) -> tuple[int, int, str]:
    step = changed.file.step
    return changed.stamp[1], -1 if step is None else step, changed.file.source


def _list_files_in(folder: Path) -> Iterator[Path]:
    if get_path_type(folder) == "folder":
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        yield from (path for path in paths if get_path_type(path) == "file")


def find_closed_files(files: Sequence[tuple[Path, FileKind]]) -> set[Path]:
    """Returns all complete files of each folder but the last written one. Files that are gone are left out."""
    entries = []
    for path, kind in files:
        with suppress(OSError):
            entries.append((path, build_file_stamp(path.stat()), kind))
    return _select_closed_files(entries)


def _select_closed_files(entries: Sequence[tuple[Path, Stamp, FileKind]]) -> set[Path]:
    """Returns all complete files of each folder but the last written one.

    Trainers write one file after the other. A higher step number alone means nothing: after a resume there are later
    steps of the previous attempt.
    """
    files_by_folder: dict[Path, list[tuple[int, int, Path]]] = {}
    for path, stamp, kind in entries:
        step = None if kind.grows else kind.step(path)
        if step is not None:
            files_by_folder.setdefault(path.parent, []).append((stamp[1], step, path))
    return {path for files in files_by_folder.values() for _, _, path in sorted(files)[:-1]}
