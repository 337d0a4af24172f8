"""Finding dump files below folders: which kind each is, of which split and step, and why the others are left out.

Folders of steps that a trainer can load again are found beside them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from rolloutdeck.errors import UsageError
from rolloutdeck.trainer_api import (
    FileHead,
    FileKind,
    LoadableStep,
    find_steps,
    find_writer,
    list_kinds,
    list_others,
    read_step,
)
from rolloutdeck.watch import compression, scan_warnings
from rolloutdeck.watch.types import DumpFile, ScanOptions, ScanResult

HEAD_BYTES = 1 << 14
ARROW = b"\xff\xff\xff\xff"
LONG_HEAD_BYTES = 4 << 20  # where the first line is longer than HEAD_BYTES
MAX_SOURCE_LENGTH = 500  # characters, what the server keeps of a source
UNKNOWN_FORMAT_FILES = "JSONL files of no known format"
UNKNOWN_COLUMN_TABLES = "tables without the columns of generations (--map says which they are)"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
UNREAD_ZSTD_FILES = "zstd files of which only the name is known here (--format says what they are)"
EXTRA_TABLES = "tables beside what a trainer wrote, which --format table takes"

EVAL_WORDS = frozenset({"val", "valid", "validation", "eval", "evals", "evaluation", "test", "dev"})
TRAIN_WORDS = frozenset({"rollout", "rollouts", "train", "training"})
_NEUTRAL = frozenset({"data", "dir", "dump", "dumps", "samples", "generations", "outputs"})


def get_absolute_path(path: Path) -> Path:
    """Without ".." but through links by their own names: those are what the person calls the folders."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100


def find_base_folder(paths: Sequence[Path]) -> Path:
    """The folder from which sources count: the folder given, or the nearest one above all that were given."""
    folders = [path.parent if path.is_file() or (path.suffix and not path.is_dir()) else path for path in paths]
    return folders[0] if len(set(folders)) == 1 else Path(os.path.commonpath(folders))


def find_files(path: Path) -> Iterator[Path]:
    """`path` itself if it is a file, else all files below it in a stable order; hidden ones are passed over."""
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(folder, name)


def read_file_head(path: Path) -> FileHead:
    """The first rows of a file; of its first line only the first key where the line is longer than 4 MiB."""
    if compression.is_compressed(path):
        return compression.read_compressed_head(path, LONG_HEAD_BYTES)
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
        if start.startswith(b"PAR1"):  # its columns are named at its end
            file.seek(-min(HEAD_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return FileHead(start=start + file.read())
        if start.startswith(ARROW):  # its columns are named in its first message
            rest = int.from_bytes(start[4:8], "little") + 8 - len(start)
            return FileHead(start=start + file.read(max(0, min(rest, LONG_HEAD_BYTES))))
        if b"\n" not in start and len(start) == HEAD_BYTES:
            start += file.read(LONG_HEAD_BYTES - HEAD_BYTES)
    return FileHead.of(start)


def detect_file_kind(path: Path, kinds: Sequence[FileKind], *, told: bool = False) -> tuple[FileKind | None, FileHead]:
    """The kind of a file, None if it is none of these. `told`: the person named the format, so contents don't count.

    Raises OSError if the file can't be read.
    """
    name = compression.remove_compression_suffix(path).name
    candidates = [kind for kind in kinds if fnmatch(name, kind.pattern)]
    if not candidates or not path.is_file():  # reading a pipe would wait for ever
        return None, FileHead()
    head = read_file_head(path)
    for known in candidates:
        kind = compression.build_compressed_kind(known) if compression.is_compressed(path) else known
        if kind.holds == "samples" and not kind.stepless and kind.step(path) is None:
            continue
        if told or kind.recognise(name, head):
            return kind, head
    return None, head


def parse_split(parts: Sequence[str], base: str = "") -> str:
    """`train`, `eval` or "" by the names of the folders around a file, the innermost first.

    `base`, the name of the folder that was given, is often the run's own ("test-lr3"), so it counts only when it
    consists of nothing but such words.
    """
    for part in reversed(parts):
        if found := _split_of(_words(part)):
            return found
    words = _words(base)
    return _split_of(words) if words <= EVAL_WORDS | TRAIN_WORDS | _NEUTRAL else ""


def _words(name: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[^a-z0-9]+", name.lower()) if word)


def _split_of(words: frozenset[str]) -> str:
    if words & EVAL_WORDS:
        return "eval"
    return "train" if words & TRAIN_WORDS else ""


def scan_folders(paths: Sequence[Path], choice: ScanOptions) -> ScanResult:
    """All dump files below `paths`, by step. Raises UsageError for a missing path or a dump that can't be read."""
    absolute = [get_absolute_path(path) for path in paths]
    for path in absolute:
        if not path.exists():
            raise UsageError(f"There is no file or folder {path}.")
    base, result = find_base_folder(absolute), ScanResult()
    kinds = list_kinds(choice.format)
    by_folder: dict[Path, list[tuple[DumpFile, FileHead]]] = {}
    claimed = set() if choice.format else _with_folders(absolute, base, result)
    for path in dict.fromkeys(file for start in absolute for file in find_files(start)):
        if path in claimed:
            continue
        source = path.relative_to(base).as_posix()
        try:
            kind, head = detect_file_kind(path, kinds, told=bool(choice.format))
            reason = _reason_against(path, source, kind)
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror or error}.") from error
        if kind is None or reason:
            result.left_out.setdefault(reason, []).append(source)
            continue
        found = DumpFile(path, source, kind, "train", kind.step(path), choice.step_kind("metrics", kind.step_kind))
        by_folder.setdefault(path.parent, []).append((found, head))
    if not choice.format and has_trainer_samples(found.kind for members in by_folder.values() for found, _ in members):
        _leave_guessed(by_folder, result.left_out)
    guessed: dict[tuple[str, str], list[Path]] = {}
    for folder, members in by_folder.items():
        result.files += _with_split(folder, base, members, choice, guessed)
    result.notes += [
        *scan_warnings.describe_guessed_splits(guessed),
        *scan_warnings.describe_overlapping_steps(result.files),
    ]
    result.files.sort(key=lambda found: (found.step if found.step is not None else -1, found.split, found.source))
    return result


def has_trainer_samples(kinds: Iterable[FileKind]) -> bool:
    """Whether some of the files are known to be samples that a trainer wrote."""
    return any(kind.holds == "samples" and not kind.guessed for kind in kinds)


def _leave_guessed(by_folder: dict[Path, list[tuple[DumpFile, FileHead]]], left_out: dict[str, list[str]]) -> None:
    for folder, members in by_folder.items():
        if guessed := [found.source for found, _ in members if found.kind.guessed]:
            left_out.setdefault(EXTRA_TABLES, []).extend(guessed)
            by_folder[folder] = [one for one in members if not one[0].kind.guessed]


def _with_folders(paths: Sequence[Path], base: Path, result: ScanResult) -> set[Path]:
    """Adds the steps that can be loaded again; the files that are theirs alone, or those of one that is not whole."""
    claimed = set()
    for spot in dict.fromkeys(spot for path in paths for spot in find_steps(path)):
        claimed |= set() if spot.dumps else {spot.path, *(spot.path / name for name in spot.files)}
        found = spot.reason or read_step(spot)
        if isinstance(found, LoadableStep):
            result.folders.append(found)
            result.trainer = spot.trainer
        else:
            place = spot.path if spot.path != base else base / spot.files[0]
            result.left_out.setdefault(found, []).append(place.relative_to(base).as_posix())
    result.folders.sort(key=lambda one: (str(one.path.parent), one.step))
    return claimed


def _reason_against(path: Path, source: str, kind: FileKind | None) -> str:
    if len(source) > MAX_SOURCE_LENGTH:
        return f"files whose path is longer than {MAX_SOURCE_LENGTH} characters"
    if kind:
        return ""
    for pattern, what in list_others().items():
        if fnmatch(path.name, pattern):
            return what
    if path.suffix == compression.ZSTD:
        return UNREAD_ZSTD_FILES
    if not path.exists():
        return "links to files that are not there"
    plain = compression.remove_compression_suffix(path)
    if plain.suffix in TABLE_SUFFIXES and not path.stat().st_size:
        return "empty files"
    if plain.suffix in TABLE_SUFFIXES or plain.name.endswith(".table.json"):
        return UNKNOWN_FORMAT_FILES if plain.suffix == ".jsonl" else UNKNOWN_COLUMN_TABLES
    return f"{path.suffix} files" if path.suffix else "files without an ending"


def _with_split(
    folder: Path,
    base: Path,
    members: list[tuple[DumpFile, FileHead]],
    choice: ScanOptions,
    guessed: dict[tuple[str, str], list[Path]],
) -> Iterable[DumpFile]:
    """Puts into `guessed` a folder whose split nobody named, under the one that was taken and why."""
    samples = [(found, head) for found, head in members if found.kind.holds == "samples"]
    unnamed = [(found, head) for found, head in samples if not found.kind.split(found.path)]
    split = ""
    if unnamed:
        split, why = detect_split(folder, base, unnamed, choice)
        if why:
            guessed.setdefault((split, why), []).append(folder)
    for found, _ in members:
        if found.kind.holds == "metrics":
            yield found
        else:
            own = choice.split or found.kind.split(found.path) or split
            step_kind = choice.step_kind(own, found.kind.step_kind)
            yield DumpFile(found.path, found.source, found.kind, own, found.step, step_kind, choice.columns)


def detect_split(
    folder: Path, base: Path, samples: Sequence[tuple[DumpFile, FileHead]], choice: ScanOptions
) -> tuple[str, str]:
    """The split of a folder's files, and why where neither the person nor a folder's name says it."""
    named = choice.split or parse_split(folder.relative_to(base).parts, base.name)
    if named:
        return named, ""
    trainer = find_writer(samples[0][0].kind.format)
    steps = [found.step for found, _ in samples if found.step is not None]
    split, why = trainer.guess_split([head for _, head in samples], steps)
    return split, f"no folder's name says what it is, and {why}"
