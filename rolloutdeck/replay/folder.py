"""The folder that a trainer is pointed at: only what `pull` put there, each step whole or not there.

`.rolloutdeck-pull.json` marks it: {"complete", "folders": [step folders], "shared": [folders in which many steps have
their files], "files": {path below it: sha256}, "coming": [paths of a pull that has not ended], …}. While something is
being done, `.rolloutdeck-pull/` holds the bytes and the step folders that are not in place yet; both names are no
step's, so a trainer passes over them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rolloutdeck.errors import UsageError
from rolloutdeck.lib import hash_file

PULL_MANIFEST = ".rolloutdeck-pull.json"
STAGING_FOLDER = ".rolloutdeck-pull"
MAX_MANIFEST_BYTES = 256 << 20  # bytes

StepFiles = Sequence[tuple[str, str, Path]]  # of a step folder: name below it, sha256, where the bytes are


class ReplayFolder:
    """A folder of our own below `path`. `files` is what lies there from earlier: path below it -> sha256."""

    def __init__(self, path: Path) -> None:
        """Takes the folder, which must be absent, empty or marked as ours. Raises UsageError, changes nothing."""
        self.path = Path(os.path.realpath(path))
        self._release: Callable[[], object] | None = None
        self.aside = self.path / STAGING_FOLDER
        if self.path.is_dir():
            self._lock()
        self._record = _read(self.path)
        self.files: dict[str, str] = dict(self._record.get("files", {}))
        self.folders = {PurePosixPath(folder) for folder in self._record.get("folders", ())}
        self.shared = {PurePosixPath(folder) for folder in self._record.get("shared", ())}
        self.coming: set[str] = set(self._record.get("coming", ()))
        self._names = self._by_folder()
        self._placed: set[PurePosixPath] = set()  # step folders, and files in shared ones
        self._verified: set[str] = set()
        self._check_own()

    def claim(
        self, folders: Iterable[PurePosixPath], coming: Iterable[PurePosixPath] = (), *, shared: bool = False
    ) -> None:
        """Marks the folder as ours, these step folders included, or folders that many steps share. `coming` are the
        files that will be put. Raises UsageError where a stranger's file is."""
        wanted, known = set(folders), self.shared if shared else self.folders
        for folder in sorted(wanted):
            for place in [PurePosixPath(STAGING_FOLDER), folder, *folder.parents][:-1]:
                if (self.path / place).is_symlink():
                    raise UsageError(f"{self.path / place} is a link; `pull` writes below --into only.")
            if folder not in known and (self.path / folder).exists():
                raise UsageError(f"{self.path / folder} was not written by `pull`: another --into is needed.")
        known |= wanted
        self.coming |= set(map(str, coming))
        self.aside.mkdir(parents=True, exist_ok=True)
        self._lock()
        self._write({"complete": False})

    def known(self, sha256: str) -> Path | None:
        """Bytes with this hash that an earlier pull left here, verified and linked aside."""
        aside = self.aside / sha256
        if aside.exists() and (sha256 in self._verified or hash_file(aside) == sha256):
            self._verified.add(sha256)
            return aside
        aside.unlink(missing_ok=True)
        for name, known in self.files.items():
            if known == sha256 and (self.path / name).is_file() and hash_file(self.path / name) == sha256:
                _link(self.path / name, aside)
                self._verified.add(sha256)
                return aside
        return None

    def put(self, folder: PurePosixPath, parts: StepFiles) -> None:
        """One step's folder, written aside in the given order and renamed into place; an equal one stays as it is."""
        final = self.path / folder
        self._forget(folder)
        self.files.update({str(folder / name): sha256 for name, sha256, _ in parts})
        self._placed.add(folder)
        if final.exists() and _same(final, parts):
            return
        fresh = self.aside / "new"
        shutil.rmtree(fresh, ignore_errors=True)
        for name, _, source in parts:
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            _link(source, fresh / name)
        self._move_away(folder)
        final.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(final)

    def put_among(self, folder: PurePosixPath, parts: StepFiles) -> None:
        """One step's files among those of other steps, each written aside and moved into place, in the given order."""
        for name, sha256, source in parts:
            path = folder / name
            self.files[str(path)] = sha256
            self._placed |= {folder, path}
            final, fresh = self.path / path, self.aside / "fresh"
            if not final.is_symlink() and final.is_file() and (final.samefile(source) or hash_file(final) == sha256):
                continue
            fresh.unlink(missing_ok=True)
            _link(source, fresh)
            final.parent.mkdir(parents=True, exist_ok=True)
            fresh.replace(final)

    def finish(self, about: Mapping[str, Any]) -> None:
        """Takes away the steps of earlier pulls that were not put again, and writes down what lies here now."""
        for folder in self.folders - self._placed:
            self._forget(folder)
            self._move_away(folder)
            self._prune(folder)
        for name in self._in_shared():
            if PurePosixPath(name) not in self._placed:
                self.files.pop(name, None)
                (self.path / name).unlink(missing_ok=True)
                self._prune(PurePosixPath(name))
        self.folders, self.shared, self.coming = self.folders & self._placed, self.shared & self._placed, set()
        self._write({**about, "complete": True})
        shutil.rmtree(self.aside, ignore_errors=True)
        if self._release is not None:
            self._release()

    def _lock(self) -> None:
        """No other `pull` works here until this one ends, however it ends. Raises UsageError while one does."""
        if self._release is not None:
            return
        handle = os.open(self.path, os.O_RDONLY)
        self._release = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"Another `pull` is at work in {self.path}; wait for it, or give another --into."
            ) from None
        except OSError:  # a file system without locks
            return

    def _check_own(self) -> None:
        """What a trainer wrote into one of our step folders would be lost when it is replaced; in a folder of all steps
        it would be taken for a step of the plan."""
        known = self.files.keys() | self.coming
        for folder in self.folders | self.shared:
            for name in _below(self.path / folder):
                if str(folder / name) not in known:
                    raise UsageError(
                        f"{self.path / folder / name} was not written by `pull`: another --into is needed."
                    )

    def _by_folder(self) -> dict[PurePosixPath, list[str]]:
        """The names in `files` by the step folder they lie in."""
        found: dict[PurePosixPath, list[str]] = {}
        for name in self.files:
            for folder in self.folders.intersection(PurePosixPath(name).parents):
                found.setdefault(folder, []).append(name)
        return found

    def _in_shared(self) -> list[str]:
        """The files in folders of many steps: of this pull, of earlier ones, and of those that did not end."""
        known = self.files.keys() | self.coming
        return [name for name in known if self.shared.intersection(PurePosixPath(name).parents)]

    def _forget(self, folder: PurePosixPath) -> None:
        for name in self._names.pop(folder, ()):
            self.files.pop(name, None)

    def _move_away(self, folder: PurePosixPath) -> None:
        old = self.aside / "old"
        shutil.rmtree(old, ignore_errors=True)
        if (self.path / folder).exists():
            (self.path / folder).rename(old)

    def _prune(self, folder: PurePosixPath) -> None:
        for place in list(folder.parents)[:-1]:
            try:
                (self.path / place).rmdir()
            except OSError:
                return

    def _write(self, about: Mapping[str, Any]) -> None:
        listed = {"folders": sorted(map(str, self.folders)), "shared": sorted(map(str, self.shared))}
        coming = {"coming": sorted(self.coming)} if self.coming else {}
        record = {"rolloutdeck": "pull", **about, **listed, **coming, "files": self.files}
        fresh = self.aside / "manifest"
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path / PULL_MANIFEST)


def _read(path: Path) -> dict[str, Any]:
    """What an earlier pull wrote down; {} for an empty folder or none. Raises UsageError for anything else."""
    if not path.exists():
        return {}
    if not path.is_dir():
        raise UsageError(f"{path} is a file; --into needs a folder.")
    if {file.name for file in path.iterdir()} <= {
        STAGING_FOLDER
    }:  # empty, or a pull was killed before it had marked it
        return {}
    try:
        if not (path / PULL_MANIFEST).is_file() or (path / PULL_MANIFEST).stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError
        found = json.loads((path / PULL_MANIFEST).read_bytes())
        paths = [*found["folders"], *found.get("shared", ()), *found.get("coming", ()), *found["files"]]
        if found["rolloutdeck"] != "pull" or not all(map(_is_below, paths)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{path} is not empty and was not written by `pull`; give --into a folder of its own."
        ) from None
    return dict(found)


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _below(folder: Path) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name).relative_to(folder).as_posix() for name in names)


def _same(final: Path, parts: StepFiles) -> bool:
    """Whether the folder holds just these bytes already."""
    if sorted(_below(final)) != sorted(name for name, _, _ in parts):
        return False
    return all((final / name).samefile(source) or hash_file(final / name) == sha256 for name, sha256, source in parts)


def _link(source: Path, at: Path) -> None:
    """The same bytes under another name: one file where the file system can, else a copy. Nobody writes to it."""
    source.chmod(source.stat().st_mode & ~0o222)
    try:
        os.link(source, at)
    except OSError:
        shutil.copyfile(source, at)
        shutil.copymode(source, at)
