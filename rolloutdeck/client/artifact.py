"""A step's files as an artifact: which they are, their hashes, and what the server is told of them.

Nothing is copied: the bytes stay where the trainer wrote them until they are wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.client.launch import clean_name, get_host_name
from rolloutdeck.protocol import check_manifest, compute_artifact_key, count_manifest_bytes

CHUNK = 1 << 20
MAX_CACHED_HASHES = 20_000  # hashes in memory, 200 bytes each

FileStamp = tuple[int, int, int]  # size, mtime_ns, inode

_hashes: dict[Path, tuple[FileStamp, str]] = {}


class FileChangedError(Exception):
    """A file changed while it was read: it is still being written."""


@dataclass(frozen=True)
class LocalArtifact:
    """`files`: {path below `path`: {"sha256", "bytes"}}, as they were when they had these `stamps`."""

    path: Path
    role: str
    step: int
    files: Mapping[str, Mapping[str, Any]]
    stamps: Mapping[str, FileStamp]
    step_kind: str = "global_step"
    split: str = "train"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The artifact's id, the same wherever the same files lie."""
        return compute_artifact_key(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return count_manifest_bytes(self.files)

    def told(self, attempt: str, command: str, send_now: bool = False, gone: str = "") -> dict[str, Any]:
        """The body of `PUT runs/{uid}/artifacts/`. `command` would send the bytes if typed on this machine; `gone` says
        why they can't be sent any more."""
        return {
            "attempt": attempt,
            "split": self.split,
            "step_kind": self.step_kind,
            "step": self.step,
            "role": self.role,
            "files": self.files,
            "facts": self.facts,
            "origin": {"host": get_host_name(), "path": str(self.path), "command": command},
            "send_now": send_now,
            "gone": gone,
        }


def build_artifact(
    path: Path,
    names: Iterable[str],
    role: str,
    step: int,
    *,
    step_kind: str = "global_step",
    split: str = "train",
    facts: Mapping[str, Any] | None = None,
) -> LocalArtifact:
    """Hashes the files `names` below `path`, each once as long as its stamp stays.

    Raises OSError, FileChangedError, and ValueError where they make no manifest.
    """
    files, stamps = {}, {}
    for name in names:
        stamps[name], sha256 = hash_stable_file(path / name)
        files[name] = {"sha256": sha256, "bytes": stamps[name][0]}
    check_manifest(files)
    return LocalArtifact(path, role, step, files, stamps, step_kind, split, dict(facts or {}))


def build_path_artifact(path: Path, told: Mapping[str, Any]) -> LocalArtifact:
    """The artifact that `Run.log_artifact` named: a file, or all files of a folder. Raises as `build_artifact`.

    `told` has `role step step_kind split files facts`; no `files` means all. Facts that the trainer's own layout tells
    are added to those given.
    """
    folder = path if path.is_dir() else path.parent
    names = told["files"] or ([path.name] if folder != path else list_files_below(path))
    return build_artifact(
        folder,
        names,
        told["role"],
        told["step"],
        step_kind=told["step_kind"],
        split=told["split"],
        facts={**read_layout_facts(path, names), **told["facts"]},
    )


def build_tokenizer_artifact(path: Path) -> LocalArtifact:
    """The tokenizer that a run's token ids belong to, kept at step 0. Raises OSError, FileChangedError, ValueError."""
    from rolloutdeck.protocol import compute_tokenizer_fingerprint, find_tokenizer_file, load_vocabulary

    file = find_tokenizer_file(path)
    facts = {"tokenizer": compute_tokenizer_fingerprint(load_vocabulary(file))}
    return build_artifact(file.parent, [file.name], "tokenizer", 0, facts=facts)


def read_layout_facts(path: Path, names: Collection[str]) -> dict[str, Any]:
    """What the layout and the batch of a trainer's own step tell, which are these files; {} for anything else."""
    from rolloutdeck.trainer_api import LoadableStep, find_steps, read_step

    for spot in find_steps(path):
        if not set(spot.files) <= set(names):
            continue
        found = read_step(spot)
        if isinstance(found, LoadableStep) and path in (found.path, spot.path):
            return {name: fact for name, fact in found.facts.items() if name != "role"}
    return {}


def preload_modules() -> None:
    """Loads what the sender's thread will need: a fork while a thread imports spoils the module for the child."""
    import shlex  # noqa: F401

    pass
    from rolloutdeck.trainer_api import list_kinds, load_step_readers

    list_kinds()
    load_step_readers()


def list_files_below(folder: Path) -> list[str]:
    """All files below a folder as relative paths with "/"; hidden ones are passed over."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


def read_file_stamp(path: Path) -> FileStamp:
    """Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def hash_stable_file(path: Path) -> tuple[FileStamp, str]:
    """A file's stamp and sha256, streamed. Raises OSError and FileChangedError."""
    stamp = read_file_stamp(path)
    known = _hashes.get(path)
    if known and known[0] == stamp:
        return known
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    if read_file_stamp(path) != stamp:
        raise FileChangedError(f"{path} is still being written")
    cache_file_hash(path, stamp, digest.hexdigest())
    return stamp, digest.hexdigest()


def cache_file_hash(path: Path, stamp: FileStamp, sha256: str) -> None:
    """Nobody needs to read this file again as long as its stamp stays."""
    if len(_hashes) >= MAX_CACHED_HASHES:
        _hashes.clear()
    _hashes[path] = stamp, sha256


def build_import_command(path: Path, project: str, run: str, attempt: str) -> str:
    """What sends the bytes of this folder to this run's launch, for a person to type."""
    import shlex  # not at the top: a trainer that keeps no steps need not wait for it

    words = [
        "rolloutdeck",
        "import",
        str(path),
        "--project",
        project,
        "--run",
        clean_name(run, 200),
        "--attempt",
        attempt,
    ]
    return shlex.join(words)
