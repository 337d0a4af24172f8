"""Finds dump files below folders: the kind, split and step of each file, and why other files are skipped.

Also finds folders of steps that a trainer can load again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path, PurePath

from rolloutdeck import trainer_api
from rolloutdeck.errors import UsageError
from rolloutdeck.lib import get_path_type
from rolloutdeck.trainer_api import FileHead, FileKind, LoadableStep
from rolloutdeck.watch import compression, file_endings, scan_warnings
from rolloutdeck.watch.types import DumpFile, ScanOptions, ScanResult

HEAD_BYTES = 1 << 14
ARROW_START = b"\xff\xff\xff\xff"
LONG_HEAD_BYTES = 4 << 20  # if the first line is longer than HEAD_BYTES
MAX_SOURCE_LENGTH = 500  # characters, the server's limit
UNKNOWN_FORMAT_FILES = "JSONL files of an unknown format"
UNKNOWN_COLUMN_TABLES = "tables without known sample columns (name them with --map)"
DAMAGED_PARQUET_FILES = "Parquet files that are damaged or incomplete"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow")
UNREAD_ZSTD_FILES = "zstd files of unknown content (set it with --format)"
EXTRA_TABLES = "tables next to a trainer's files (import them with --format table)"
LINKED_FOLDERS = "links to folders; import what they point to by its own path"
UNREADABLE_FOLDERS = "folders that can't be read"

EVAL_WORDS = frozenset({"val", "valid", "validation", "eval", "evals", "evaluation", "test", "dev"})
TRAIN_WORDS = frozenset({"rollout", "rollouts", "train", "training"})
_NEUTRAL = frozenset({"data", "dir", "dump", "dumps", "samples", "generations", "outputs"})

ReadFile = tuple[DumpFile, FileHead]


def get_absolute_path(path: Path) -> Path:
    """Returns the path without `..`. Links keep their own names, because users call the folders by them."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100


def find_base_folder(paths: Sequence[Path]) -> Path:
    """Returns the folder that sources are relative to: the given folder, or the nearest common parent."""
    folders = [path.parent if _is_file(path) else path for path in paths]
    return folders[0] if len(set(folders)) == 1 else Path(os.path.commonpath(folders))


def _is_file(path: Path) -> bool:
    """Whether a path is a file. A path that does not exist yet is one if its suffix is that of a dump file.

    Names of runs contain dots too, such as `qwen2.5-7b`.
    """
    if path_type := get_path_type(path):
        return path_type != "folder"
    suffixes = {PurePath(kind.pattern).suffix for kind in trainer_api.list_kinds()}
    return compression.remove_compression_suffix(path).suffix in suffixes


def build_source(path: Path, base: Path) -> str:
    """Returns the name of a file for the server. A byte that is not UTF-8 is written as \\xNN."""
    source = path.relative_to(base).as_posix() if base in path.parents else path.name
    return source.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def find_files(
    path: Path,
    on_error: Callable[[OSError], None] | None = None,
    on_link: Callable[[Path], None] = lambda folder: None,
) -> Iterator[Path]:
    """Yields `path` if it is a file, else all files below it in a stable order, without hidden files and folders.

    Hidden folders that a trainer writes are searched. `on_error` receives the error of a folder that can't be read,
    unless it is gone or is a pipe. `on_link` receives links to folders: they are not followed, since links such as
    `latest` lead to files that are found anyway.
    """
    if get_path_type(path) == "file":
        yield path
        return

    def report_error(error: OSError) -> None:
        if on_error and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            on_error(error)

    searched = trainer_api.list_hidden_folders()
    for folder, folders, names in os.walk(path, onerror=report_error):
        folders[:] = sorted(name for name in folders if not name.startswith(".") or name in searched)
        for name in folders:
            if Path(folder, name).is_symlink():
                on_link(Path(folder, name))
        for name in sorted(names):
            if not name.startswith("."):
                yield Path(folder, name)


def read_file_head(path: Path) -> FileHead:
    """Returns the first rows of a file; only the first key if the first line is longer than 4 MiB."""
    if compression.is_compressed(path):
        return compression.read_compressed_head(path, LONG_HEAD_BYTES)
    with path.open("rb") as file:
        start = file.read(HEAD_BYTES)
        if start.startswith(b"PAR1"):  # the column names are at the end
            file.seek(-min(HEAD_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return FileHead(start=start + file.read())
        if start.startswith(ARROW_START):  # the column names are in the first message
            rest = int.from_bytes(start[4:8], "little") + 8 - len(start)
            return FileHead(start=start + file.read(max(0, min(rest, LONG_HEAD_BYTES))))
        if b"\n" not in start and len(start) == HEAD_BYTES:
            start += file.read(LONG_HEAD_BYTES - HEAD_BYTES)
    return FileHead.from_bytes(start)


def detect_file_kind(
    path: Path, kinds: Sequence[FileKind], *, is_format_given: bool = False
) -> tuple[FileKind | None, FileHead]:
    """Returns the kind of a file and its head; None if it is none of these kinds.

    `is_format_given`: the user set the format, so the content is not checked. Raises OSError if the file can't be read.
    """
    name = compression.remove_compression_suffix(path).name
    candidates = [kind for kind in kinds if fnmatch(name, kind.pattern)]
    if not candidates or not path.is_file():  # reading a pipe would block forever
        return None, FileHead()
    head = read_file_head(path)
    for known in candidates:
        kind = compression.build_compressed_kind(known) if compression.is_compressed(path) else known
        needs_step = kind.missing_step or (kind.content == "samples" and not kind.stepless)
        if needs_step and kind.step(path) is None:
            continue
        if is_format_given or kind.matches(name, head):
            return (replace(kind, step=_find_no_step) if kind.rows_have_step(path, head) else kind), head
    return None, head


def explain_missing_step(path: Path, kinds: Iterable[FileKind]) -> str:
    """Returns why a file is skipped whose kind needs a step, and whose step is unknown; "" for other files."""
    uncompressed = compression.remove_compression_suffix(path)
    for kind in kinds:
        if kind.missing_step and fnmatch(uncompressed.name, kind.pattern) and kind.step(uncompressed) is None:
            return kind.missing_step
    return ""


def _find_no_step(path: PurePath) -> int | None:
    """The step of a file whose rows have the step: the number in its name is not a step."""
    return None


def parse_split(parts: Sequence[str], base: str = "") -> str:
    """Returns `train`, `eval` or "" from the names of the folders around a file, the innermost first.

    `base`, the name of the given folder, is often the run's name ("test-lr3"), so it counts only if all its words are
    split words.
    """
    for part in reversed(parts):
        if split := _match_split(_split_words(part)):
            return split
    words = _split_words(base)
    return _match_split(words) if words <= EVAL_WORDS | TRAIN_WORDS | _NEUTRAL else ""


def _split_words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _match_split(words: set[str]) -> str:
    if words & EVAL_WORDS:
        return "eval"
    return "train" if words & TRAIN_WORDS else ""


def scan_folders(
    paths: Sequence[Path], options: ScanOptions, on_error: Callable[[OSError], None] = lambda error: None
) -> ScanResult:
    """Returns all dump files below `paths`, by step. Raises UsageError if a path is missing or a dump can't be read.

    A folder that can't be read is skipped, and `on_error` receives its error.
    """
    absolute = [get_absolute_path(path) for path in paths]
    for path in absolute:
        if not path.exists():
            raise UsageError(f"There is no file or folder {path}.")
    base, result = find_base_folder(absolute), ScanResult()
    kinds = trainer_api.list_kinds(options.format)
    by_folder: dict[Path, list[ReadFile]] = {}
    claimed = set() if options.format else _add_loadable_steps(absolute, base, result)

    def skip_folder(folder: Path, reason: str) -> None:
        skipped = result.skipped.setdefault(reason, [])
        if (source := build_source(folder, base)) not in skipped:  # one of the paths may be below another
            skipped.append(source)

    def skip_unreadable(error: OSError) -> None:
        skip_folder(Path(error.filename or base), UNREADABLE_FOLDERS)
        on_error(error)

    def skip_link(folder: Path) -> None:
        skip_folder(folder, LINKED_FOLDERS)

    found = (file for start in absolute for file in find_files(start, skip_unreadable, skip_link))
    for path in dict.fromkeys(found):
        if path in claimed:
            continue
        source = build_source(path, base)
        try:
            kind, head = detect_file_kind(path, kinds, is_format_given=bool(options.format))
            reason = _explain_skipped(path, source, kind, kinds)
        except OSError as error:
            raise UsageError(f"{path} can't be read: {error.strerror or error}.") from error
        if kind is None or reason:
            result.skipped.setdefault(reason, []).append(source)
            continue
        dump_file = DumpFile(path, source, kind, "train", kind.step(path), options.step_kind("metrics", kind.step_kind))
        by_folder.setdefault(path.parent, []).append((dump_file, head))
    kinds_found = (dump_file.kind for members in by_folder.values() for dump_file, _ in members)
    if not options.format and has_trainer_samples(kinds_found):
        _skip_guessed(by_folder, result.skipped)
    guessed: dict[tuple[str, str], list[Path]] = {}
    for folder, members in by_folder.items():
        result.files += _assign_split(folder, base, members, options, guessed)
    result.notes += scan_warnings.describe_guessed_splits(guessed)
    result.notes += scan_warnings.describe_overlapping_steps(result.files)
    result.files.sort(key=lambda file: (-1 if file.step is None else file.step, file.split, file.source))
    return result


def has_trainer_samples(kinds: Iterable[FileKind]) -> bool:
    """Whether some of the files are known to be samples that a trainer wrote."""
    return any(kind.content == "samples" and not kind.guessed for kind in kinds)


def _skip_guessed(by_folder: dict[Path, list[ReadFile]], skipped: dict[str, list[str]]) -> None:
    for folder, members in by_folder.items():
        if guessed := [file.source for file, _ in members if file.kind.guessed]:
            skipped.setdefault(EXTRA_TABLES, []).extend(guessed)
            by_folder[folder] = [member for member in members if not member[0].kind.guessed]


def _add_loadable_steps(paths: Sequence[Path], base: Path, result: ScanResult) -> set[Path]:
    """Adds the steps that can be loaded again to the result.

    Returns the files that belong only to such steps, also those of incomplete steps.
    """
    claimed = set()
    for location in dict.fromkeys(location for path in paths for location in trainer_api.find_steps(path)):
        if not location.has_samples:
            claimed |= {location.path, *(location.path / name for name in location.files)}
        step = location.reason or trainer_api.read_step(location)
        if isinstance(step, LoadableStep):
            result.steps.append(step)
            result.trainer = location.trainer
        else:
            skipped_path = location.path if base in location.path.parents else location.path / location.files[0]
            result.skipped.setdefault(step, []).append(build_source(skipped_path, base))
    result.steps.sort(key=lambda loadable_step: (str(loadable_step.path.parent), loadable_step.step))
    return claimed


def _explain_skipped(path: Path, source: str, kind: FileKind | None, kinds: Sequence[FileKind]) -> str:
    if len(source) > MAX_SOURCE_LENGTH:
        return f"files whose path is longer than {MAX_SOURCE_LENGTH} characters"
    if kind:
        return ""
    if reason := explain_missing_step(path, kinds):
        return reason
    for pattern, description in trainer_api.list_others().items():
        if fnmatch(path.name, pattern):
            return description
    if path.suffix == compression.ZSTD:
        return UNREAD_ZSTD_FILES
    if not path.exists():
        return "links to missing files"
    uncompressed = compression.remove_compression_suffix(path)
    if uncompressed.suffix in TABLE_SUFFIXES and not path.stat().st_size:
        return "empty files"
    if path.suffix == ".parquet" and not _is_parquet(path):
        return DAMAGED_PARQUET_FILES
    if uncompressed.suffix in TABLE_SUFFIXES or uncompressed.name.endswith(".table.json"):
        return UNKNOWN_FORMAT_FILES if uncompressed.suffix == ".jsonl" else UNKNOWN_COLUMN_TABLES
    return f"{path.suffix} files" if path.suffix else "files without a suffix"


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file_endings.is_parquet(file, path.stat().st_size)


def _assign_split(
    folder: Path,
    base: Path,
    members: list[ReadFile],
    options: ScanOptions,
    guessed: dict[tuple[str, str], list[Path]],
) -> Iterable[DumpFile]:
    """Yields the files with their split. Adds a folder whose split is guessed to `guessed`, under split and reason."""
    samples = [(file, head) for file, head in members if file.kind.content == "samples"]
    unnamed = [(file, head) for file, head in samples if not file.kind.split(file.path)]
    split = ""
    if unnamed:
        split, reason = detect_split(folder, base, unnamed, options)
        if reason:
            guessed.setdefault((split, reason), []).append(folder)
    for file, _ in members:
        if file.kind.content == "metrics":
            yield file
        else:
            file_split = options.split or file.kind.split(file.path) or split
            step_kind = options.step_kind(file_split, file.kind.step_kind)
            yield DumpFile(file.path, file.source, file.kind, file_split, file.step, step_kind, options.columns)


def detect_split(folder: Path, base: Path, samples: Sequence[ReadFile], options: ScanOptions) -> tuple[str, str]:
    """Returns the split of a folder's files, and a reason if neither the user nor a folder's name determines it."""
    parts = folder.relative_to(base).parts if folder.is_relative_to(base) else ()  # a file next to a run's folder
    known_split = options.split or parse_split(parts, base.name)
    if known_split:
        return known_split, ""
    trainer = trainer_api.find_writer(samples[0][0].kind.format)
    steps = [file.step for file, _ in samples if file.step is not None]
    split, reason = trainer.guess_split([head for _, head in samples], steps)
    return split, f"no folder name says what it is, and {reason}"
