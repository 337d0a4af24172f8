"""The folder that a trainer loads steps from. Only `pull` writes to it, and each step is complete or absent.

`.rolloutdeck-pull.json` marks the folder: {"complete", "folders": [step folders], "shared": [folders that contain the
files of many steps], "files": {path below the folder: sha256}, "coming": [paths of a pull that has not ended], …}.
During a pull, `.rolloutdeck-pull/` contains the downloaded files and the step folders that are not in place yet. Both
names differ from step names, so a trainer ignores them.
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
from rolloutdeck.lib import hash_file, logger

PULL_MANIFEST = ".rolloutdeck-pull.json"
STAGING_FOLDER = ".rolloutdeck-pull"
LOCK_FILE = ".rolloutdeck-pull.lock"
MAX_MANIFEST_BYTES = 256 << 20  # bytes

StepFiles = Sequence[tuple[str, str, Path]]  # files of a step folder: (name below it, sha256, source path)


class ReplayFolder:
    """A folder that only `pull` writes to. `files`: the files of earlier pulls, path below the folder -> sha256."""

    def __init__(self, path: Path) -> None:
        """Opens the folder, which must be absent, empty or written by `pull`. Changes nothing. Raises UsageError."""
        self.path = Path(os.path.realpath(path))
        self._release: Callable[[], object] | None = None
        self.staging = self.path / STAGING_FOLDER
        self._earlier = manifest = _read(self.path)
        if self.path.is_dir():
            self._lock()
            self._earlier = manifest = _read(self.path)  # another `pull` may have ended before the lock
        self.files: dict[str, str] = dict(manifest.get("files", {}))
        self.folders = set(map(PurePosixPath, manifest.get("folders", ())))
        self.shared = set(map(PurePosixPath, manifest.get("shared", ())))
        self.coming: set[str] = set(manifest.get("coming", ()))
        self._names = self._group_by_folder()
        self._placed: set[PurePosixPath] = set()  # step folders, and files in shared ones
        self._verified: set[str] = set()
        self._check_own()

    def claim(
        self, folders: Iterable[PurePosixPath], coming: Iterable[PurePosixPath] = (), *, shared: bool = False
    ) -> None:
        """Marks the folder and these step folders (or, with `shared`, folders of many steps) as written by `pull`.

        `coming`: the files that will be written. Raises UsageError if a folder exists that `pull` did not write.
        """
        requested, known = set(folders), self.shared if shared else self.folders
        for folder in sorted(requested):
            for path in [PurePosixPath(STAGING_FOLDER), folder, *folder.parents][:-1]:
                if (self.path / path).is_symlink():
                    raise UsageError(f"{self.path / path} is a symbolic link. `pull` writes only below --into.")
            if folder not in known and (self.path / folder).exists():
                raise UsageError(f"{self.path / folder} was not written by `pull`. Use another folder for --into.")
        known |= requested
        self.coming |= set(map(str, coming))
        self.staging.mkdir(parents=True, exist_ok=True)
        if self._release is None:
            self._lock()
            if not self._earlier and _read(self.path):
                if self._release is not None:
                    self._release()
                message = f"Another `pull` has just written to {self.path}. Start again, to add the steps of this plan."
                raise UsageError(message)
        self._write({"complete": False})

    def find_verified_file(self, sha256: str) -> Path | None:
        """Returns a file in the staging folder with this hash, from an earlier pull; None if there is none."""
        staged = self.staging / sha256
        if staged.exists() and (sha256 in self._verified or hash_file(staged) == sha256):
            self._verified.add(sha256)
            return staged
        staged.unlink(missing_ok=True)
        for name, known in self.files.items():
            if known == sha256 and (self.path / name).is_file() and hash_file(self.path / name) == sha256:
                _link(self.path / name, staged)
                self._verified.add(sha256)
                return staged
        return None

    def write_step_folder(self, folder: PurePosixPath, parts: StepFiles) -> None:
        """Writes one step's files, in this order, and renames their folder into place, unless it has the same files."""
        final = self.path / folder
        self._remove_entries(folder)
        self.files.update({str(folder / name): sha256 for name, sha256, _ in parts})
        self._placed.add(folder)
        if final.exists() and _has_same_files(final, parts):
            return
        staged = self.staging / "new"
        shutil.rmtree(staged, ignore_errors=True)
        for name, _, source in parts:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            _link(source, staged / name)
        self._move_away(folder)
        final.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(final)

    def write_shared_files(self, folder: PurePosixPath, parts: StepFiles) -> None:
        """Writes one step's files to a folder of many steps: each to the staging folder, then moved into place."""
        for name, sha256, source in parts:
            path = folder / name
            self.files[str(path)] = sha256
            self._placed |= {folder, path}
            final, staged = self.path / path, self.staging / "fresh"
            if not final.is_symlink() and final.is_file() and (final.samefile(source) or hash_file(final) == sha256):
                continue
            staged.unlink(missing_ok=True)
            _link(source, staged)
            final.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(final)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Removes the steps of earlier pulls that were not written again, and writes the final manifest."""
        for folder in self.folders - self._placed:
            self._remove_entries(folder)
            self._move_away(folder)
            self._prune(folder)
        # Of this pull, of earlier ones, and of interrupted ones.
        for name in self.files.keys() | self.coming:
            path = PurePosixPath(name)
            if path not in self._placed and self.shared.intersection(path.parents):
                self.files.pop(name, None)
                (self.path / name).unlink(missing_ok=True)
                self._prune(path)
        self.folders, self.shared, self.coming = self.folders & self._placed, self.shared & self._placed, set()
        self._write({**manifest, "complete": True})
        self._end()

    def restore(self) -> None:
        """Ends a pull that has written no step: the folder is as it was before `claim`."""
        if self._earlier:
            self._write_record(self._earlier)
        else:
            (self.path / PULL_MANIFEST).unlink(missing_ok=True)
        self._end()

    def _end(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)
        if self._release is not None:
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            self._release()

    def _lock(self) -> None:
        """Locks the folder until this process ends, or `finish` or `restore` returns.

        Raises UsageError if another `pull` has it.
        """
        if self._release is not None:
            return
        handle = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)  # NFS locks files that may be written
        self._release = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # SMB says EACCES
            message = f"Another `pull` is writing to {self.path}. Wait until it ends, or use another folder for --into."
            raise UsageError(message) from None
        except OSError as error:  # a file system without locks
            message = "%s cannot be locked (%s). Do not start another `pull` for it meanwhile."
            logger.warning(message, self.path, error.strerror or error)
        if not _is_same_file(handle, self.path / LOCK_FILE):  # another `pull` has just ended and removed it
            self._release()
            raise UsageError(f"Another `pull` has just written to {self.path}. Start again.")

    def _check_own(self) -> None:
        """Raises UsageError for a file that `pull` did not write: it would be lost, or loaded as a step of the plan."""
        known = self.files.keys() | self.coming
        for folder in self.folders | self.shared:
            for name in _iter_files(self.path / folder):
                file = folder / name
                if str(file) not in known:
                    raise UsageError(f"{self.path / file} was not written by `pull`. Use another folder for --into.")

    def _group_by_folder(self) -> dict[PurePosixPath, list[str]]:
        names: dict[PurePosixPath, list[str]] = {}
        for name in self.files:
            for folder in self.folders.intersection(PurePosixPath(name).parents):
                names.setdefault(folder, []).append(name)
        return names

    def _remove_entries(self, folder: PurePosixPath) -> None:
        for name in self._names.pop(folder, ()):
            self.files.pop(name, None)

    def _move_away(self, folder: PurePosixPath) -> None:
        old = self.staging / "old"
        shutil.rmtree(old, ignore_errors=True)
        if (self.path / folder).exists():
            (self.path / folder).rename(old)

    def _prune(self, folder: PurePosixPath) -> None:
        """Removes the parent folders that are empty now."""
        for parent in list(folder.parents)[:-1]:
            try:
                (self.path / parent).rmdir()
            except OSError:
                return

    def _write(self, manifest: Mapping[str, Any]) -> None:
        listed = {"folders": sorted(map(str, self.folders)), "shared": sorted(map(str, self.shared))}
        coming = {"coming": sorted(self.coming)} if self.coming else {}
        self._write_record({"rolloutdeck": "pull", **manifest, **listed, **coming, "files": self.files})

    def _write_record(self, record: Mapping[str, Any]) -> None:
        staged = self.staging / "manifest"
        with staged.open("w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self.path / PULL_MANIFEST)


def _read(path: Path) -> dict[str, Any]:
    """Returns the manifest of an earlier pull; {} if the folder is empty or absent. Raises UsageError otherwise."""
    if not path.exists():
        return {}
    if not path.is_dir():
        raise UsageError(f"{path} is a file; --into needs a folder.")
    if {file.name for file in path.iterdir()} <= {
        STAGING_FOLDER,
        LOCK_FILE,
    }:  # empty, or killed before the first manifest
        return {}
    try:
        file = path / PULL_MANIFEST
        if not file.is_file() or file.stat().st_size > MAX_MANIFEST_BYTES:
            raise ValueError
        manifest = json.loads(file.read_bytes())
        paths = [*manifest["folders"], *manifest.get("shared", ()), *manifest.get("coming", ()), *manifest["files"]]
        if manifest["rolloutdeck"] != "pull" or not all(map(_is_below, paths)):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        message = f"{path} is not empty and was not written by `pull`. Use a new or empty folder for --into."
        raise UsageError(message) from None
    return dict(manifest)


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _iter_files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in names)


def _has_same_files(final: Path, parts: StepFiles) -> bool:
    if sorted(_iter_files(final)) != sorted(name for name, _, _ in parts):
        return False
    return all((final / name).samefile(source) or hash_file(final / name) == sha256 for name, sha256, source in parts)


def _link(source: Path, target: Path) -> None:
    """Makes `target` a hard link to the file, or a copy if the file system has no hard links. Both are read-only."""
    source.chmod(source.stat().st_mode & ~0o222)
    try:
        os.link(source, target)
    except FileExistsError:  # a copy would write into the file that it is linked to
        raise
    except OSError:
        shutil.copyfile(source, target)
        shutil.copymode(source, target)
