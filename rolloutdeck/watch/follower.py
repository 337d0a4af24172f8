"""What of a folder that is being written can be sent now: whole files once they are whole, growing ones line by line.

Nothing here talks to a server: `Follower.look` finds candidates, `Follower.pieces` reads them, `Follower.sent`
remembers them once the server has them.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rolloutdeck.lib import is_safe_to_follow
from rolloutdeck.trainer_api import FileKind, list_kinds
from rolloutdeck.watch import compression
from rolloutdeck.watch.file_endings import (
    describe_truncation,
    hash_file_ends,
    hash_open_file,
    is_complete_file,
    is_continuation,
    read_complete_lines,
)
from rolloutdeck.watch.scan import MAX_SOURCE_LENGTH, detect_file_kind, detect_split, find_files, has_trainer_samples
from rolloutdeck.watch.state import SentFile, WatchState
from rolloutdeck.watch.types import DumpFile, ScanOptions

QUIET_SECONDS = 2.0  # a whole file without a successor is taken after this long without a change

Stamp = tuple[int, int, int]
Say = Callable[[str], None]


@dataclass(frozen=True)
class WatchedFolder:
    """A folder to follow. `split`: known from elsewhere; `deep`: with its subfolders."""

    path: Path
    split: str = ""
    deep: bool = True


@dataclass(frozen=True)
class FilePart:
    """Bytes of a file to send: all of them, or whole lines from `offset` on. Without a `body` the file is streamed."""

    found: DumpFile
    attempt: str
    sha256: str
    size: int
    stamp: Stamp
    body: bytes | None = None
    offset: int | None = None
    generation: int = 0
    top: int | None = None

    def query(self) -> dict[str, object]:
        """The upload's parameters; None for those that do not apply."""
        return {
            "attempt": self.attempt,
            "split": self.found.split,
            "step": self.found.step,
            "step_kind": self.found.step_kind,
            "source": self.found.source,
            "format": self.found.kind.format,
            "offset": self.offset,
            "producer": self.found.kind.producer(self.found.path) or None,
            "generation": self.generation or None,
            "columns": self.found.columns or None,
        }


@dataclass(frozen=True)
class ChangedFile:
    """A file that changed. `closed`: another one was written after it, and it has been still: this is all of it."""

    found: DumpFile
    stamp: Stamp
    closed: bool = False


def build_file_stamp(stat: os.stat_result) -> Stamp:
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


class Follower:
    """One run's folders. `state` says what was sent, `choice` what the person said about the files."""

    def __init__(
        self, roots: Sequence[WatchedFolder], base: Path, state: WatchState, choice: ScanOptions, say: Say = print
    ) -> None:
        self.roots, self.base, self.state, self.choice, self.say = roots, base, state, choice, say
        self.kinds = list_kinds(choice.format)
        self.known: dict[Path, tuple[Stamp, FileKind | None]] = {}
        self.still: dict[str, tuple[Stamp, float]] = {}
        self.torn: dict[str, Stamp] = {}
        self.links: set[Path] = set()  # that lead to what is not their owner's
        self.pending = 0  # files that may soon be whole, at the last look; those torn and still are not among them
        self.signature = 0  # changes whenever any file does

    def look(self) -> list[ChangedFile]:
        """The files that changed since they were sent and can be read now, in the order of their writing."""
        entries = self._entries()
        closed = _closed(entries)
        self.signature = hash(tuple((entry[0], entry[1]) for entry in entries))
        self.pending, found = 0, []
        for path, stamp, kind in entries:
            source = self._source(path)
            sent = self.state.files.get(source)
            if (
                (sent and sent.stamp == stamp)
                or not stamp[0]
                or len(source) > MAX_SOURCE_LENGTH
                or self._sealed(source)
            ):
                continue
            still = self._quiet(source, stamp)
            if kind.arrives == "whole" and not self._ready(source, stamp, path in closed, still):
                self.pending += self.torn.get(source) != stamp or path in closed
                continue
            found.append(ChangedFile(self._described(path, source, kind), stamp, path in closed and still))
        found.sort(key=lambda one: (one.stamp[1], -1 if one.found.step is None else one.found.step, one.found.source))
        return found

    def _sealed(self, source: str) -> bool:
        """Whether it is compressed and was sent while it was not."""
        return (
            compression.remove_compression_ending(source) != source
            and compression.remove_compression_ending(source) in self.state.files
        )

    def whole_files(self) -> list[DumpFile]:
        """All whole files there are, sent or not, in the order of their writing."""
        entries = [entry for entry in self._entries() if entry[2].arrives == "whole" and entry[1][0]]
        entries.sort(key=lambda entry: (entry[1][1], entry[2].step(entry[0]) or 0))
        return [self._described(path, self._source(path), kind) for path, _, kind in entries]

    def _entries(self) -> list[tuple[Path, Stamp, FileKind]]:
        found = list(self._files())
        if self.choice.format or not has_trainer_samples(kind for *_, kind in found):
            return found
        return [entry for entry in found if not entry[2].guessed]

    def _files(self) -> Iterator[tuple[Path, Stamp, FileKind]]:
        for root in self.roots:
            paths = find_files(root.path) if root.deep else _files_in(root.path)
            for path in paths:
                if not is_safe_to_follow(path):
                    self._left(path)
                    continue
                try:
                    stamp = build_file_stamp(path.stat())
                    kind = self._kind(path, stamp)
                except OSError:  # gone meanwhile, or not readable yet
                    continue
                if kind:
                    yield path, stamp, kind

    def _left(self, path: Path) -> None:
        if path not in self.links and path.is_symlink():
            self.links.add(path)
            self.say(f"{path} is left out: it is somebody's link to a file of somebody else.")

    def _source(self, path: Path) -> str:
        return path.relative_to(self.base).as_posix() if self.base in path.parents else path.name

    def _kind(self, path: Path, stamp: Stamp) -> FileKind | None:
        before, kind = self.known.get(path, (None, None))
        if before and ((kind and before[2] == stamp[2] and before[0] <= stamp[0]) or before == stamp):
            return kind
        kind = detect_file_kind(path, self.kinds, told=bool(self.choice.format))[0]
        self.known[path] = (stamp, kind)
        return kind

    def _described(self, path: Path, source: str, kind: FileKind) -> DumpFile:
        if kind.holds == "metrics":
            return DumpFile(
                path, source, kind, "train", kind.step(path), self.choice.step_kind("metrics", kind.step_kind)
            )
        split = self.choice.split or kind.split(path) or self._split(path, source, kind)
        step_kind = self.choice.step_kind(split, kind.step_kind)
        return DumpFile(path, source, kind, split, kind.step(path), step_kind, self.choice.columns)

    def _split(self, path: Path, source: str, kind: FileKind) -> str:
        given = next((root.split for root in self.roots if root.split and root.path in path.parents), "")
        folder = source.rpartition("/")[0]
        if given or folder in self.state.splits:
            return given or self.state.splits[folder]
        found = DumpFile(path, source, kind, "", kind.step(path))
        split, why = detect_split(path.parent, self.base, [(found, detect_file_kind(path, [kind])[1])], self.choice)
        if why:  # kept: what a folder is must not change when more files are in it
            self.state.splits[folder] = split
            self.say(f"{path.parent} is taken as {split}: {why}. Say --split eval or --split train to change it.")
        return split

    def _quiet(self, source: str, stamp: Stamp) -> bool:
        before, since = self.still.get(source, (None, 0.0))
        if before != stamp:
            self.still[source] = stamp, time.monotonic()
            return False
        return time.monotonic() - since >= QUIET_SECONDS

    def _ready(self, source: str, stamp: Stamp, closed: bool, still: bool) -> bool:
        """Nobody seems to write it any more; a file with a torn end was looked at before and needs both signs."""
        return closed and still if self.torn.get(source) == stamp else closed or still

    def pieces(self, candidate: ChangedFile) -> Iterator[FilePart]:
        """Reads a candidate. Each piece is to be sent and told to `sent` before the next is asked for.

        Raises OSError if the file can't be read; a file that changes meanwhile gives nothing and is looked at again.
        """
        with candidate.found.path.open("rb") as file:
            if candidate.found.kind.arrives == "append":
                yield from self._chunks(file, candidate.found)
            else:
                yield from self._whole(file, candidate)

    def _whole(self, file: BinaryIO, candidate: ChangedFile) -> Iterator[FilePart]:
        found, stamp = candidate.found, candidate.stamp
        if not candidate.closed and not is_complete_file(file, stamp[0], found.path.suffix):
            if found.source not in self.torn:
                self.say(f"{found.path} {describe_truncation(found.path)}; waiting for the rest.")
            self.pending += 1
            self.torn[found.source] = stamp
            return
        sha256, body = hash_open_file(file)
        if build_file_stamp(os.fstat(file.fileno())) != stamp or build_file_stamp(found.path.stat()) != stamp:
            self.pending += 1
            return
        sent = self.state.files.get(found.source)
        if sent and sent.sha256 == sha256:  # touched, not changed
            sent.stamp = stamp
            return
        if stamp[1] < self.state.since:  # what the launch before left behind
            yield FilePart(found, self.state.before, sha256, stamp[0], stamp, body)
            return
        if sent and sent.attempt == self.state.attempt and found.step is not None and found.kind.holds == "samples":
            self._rewritten(found, found.step, stamp[1])
        yield FilePart(found, self.state.attempt, sha256, stamp[0], stamp, body)

    def _rewritten(self, found: DumpFile, step: int, since: int = 0) -> None:
        """Opens a new attempt if a later step was sent before this one, which was sent too, is sent again."""
        if step < self.state.top.get(build_step_axis(found), step):
            self.state.next_attempt(since)
            self.say(f"{found.source}: step {step} was written again, so this is attempt {self.state.attempt}.")

    def _chunks(self, file: BinaryIO, found: DumpFile) -> Iterator[FilePart]:
        sent = self.state.files.get(found.source)
        offset, generation = (sent.offset, sent.generation) if sent else (0, 0)
        anew = bool(sent) and not is_continuation(file, sent)  # type: ignore[arg-type]
        if anew:
            offset, generation = 0, generation + 1
        while True:
            stamp = build_file_stamp(os.fstat(file.fileno()))
            lines = read_complete_lines(file, offset)
            if not lines:
                self._seen(found, stamp, offset, anew)
                return
            if anew and sent and sent.attempt == self.state.attempt:
                first = found.kind.line_step(lines.partition(b"\n")[0])
                if first is not None:  # whole files written before it are of the launch before
                    self._rewritten(found, first, sent.stamp[1] + 1)
            anew = False
            top = found.kind.line_step(lines[:-1].rpartition(b"\n")[2])
            sha256 = hashlib.sha256(lines).hexdigest()
            yield FilePart(found, self.state.attempt, sha256, len(lines), stamp, lines, offset, generation, top)
            offset += len(lines)

    def _seen(self, found: DumpFile, stamp: Stamp, offset: int, anew: bool) -> None:
        """A growing file without a new whole line: not read again until it changes."""
        sent = self.state.files.get(found.source)
        if sent and not anew and sent.offset == offset:
            sent.stamp = stamp

    def sent(self, piece: FilePart, *, refused: bool = False) -> None:
        """The server has this piece, or will never take it (`refused`)."""
        found, kept = (
            piece.found,
            SentFile(piece.stamp, piece.attempt, "" if refused else piece.sha256, piece.found.step),
        )
        if piece.offset is not None and piece.body is not None:
            kept.offset, kept.generation = piece.offset + piece.size, piece.generation
            # Its own stamp comes with the look that finds no further line.
            kept.stamp = (kept.offset, 0, piece.stamp[2])
            with found.path.open("rb") as file:
                kept.head, kept.tail = hash_file_ends(file, kept.offset)
        self.state.files[found.source] = kept
        self.still.pop(found.source, None)
        self.torn.pop(found.source, None)
        top = piece.top if found.step is None else found.step
        if top is not None and piece.attempt == self.state.attempt:
            self.state.top[build_step_axis(found)] = max(top, self.state.top.get(build_step_axis(found), top))


def build_step_axis(found: DumpFile) -> str:
    """Steps are compared only along one axis."""
    samples = found.step is not None and found.kind.holds == "samples"
    return f"{found.split if samples else 'metrics'}/{found.step_kind}"


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _closed(entries: Sequence[tuple[Path, Stamp, FileKind]]) -> set[Path]:
    """All whole files of a folder but the one that was written last: trainers write one after the other. A step's
    mere number says nothing, after a resume there are later ones of the launch before."""
    folders: dict[Path, list[tuple[int, int, Path]]] = {}
    for path, stamp, kind in entries:
        step = kind.step(path) if kind.arrives == "whole" else None
        if step is not None:
            folders.setdefault(path.parent, []).append((stamp[1], step, path))
    return {path for members in folders.values() for _, _, path in sorted(members)[:-1]}
