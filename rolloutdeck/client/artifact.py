"""The files of a step as an artifact: their names, hashes and the request body that registers them.

Nothing is copied: the files stay where the trainer wrote them until the server requests them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.client.process_identity import clean_name
from rolloutdeck.protocol import check_manifest, compute_artifact_key, count_manifest_bytes

CHUNK_BYTES = 1 << 20
MAX_CACHED_HASHES = 20_000  # hashes in memory, about 200 bytes each

FileStamp = tuple[int, int, int]  # size, mtime_ns, inode

_hashes: dict[Path, tuple[FileStamp, str]] = {}


class FileChangedError(Exception):
    """A file changed while it was read: it is still being written."""


@dataclass(frozen=True)
class LocalArtifact:
    """An artifact on this machine.

    `files` is {path relative to `path`: {"sha256", "bytes"}}, valid for the file `stamps`.
    """

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
        """The artifact's id. It depends on the file names and contents only, not on the folder."""
        return compute_artifact_key(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return count_manifest_bytes(self.files)


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
    """Hashes the files `names` below `path`. A file whose stamp did not change is not hashed again.

    Raises OSError, FileChangedError, or ValueError if the files are not a valid manifest.
    """
    files, stamps = {}, {}
    for name in names:
        stamps[name], sha256 = hash_stable_file(path / name)
        files[name] = {"sha256": sha256, "bytes": stamps[name][0]}
    check_manifest(files)
    return LocalArtifact(path, role, step, files, stamps, step_kind, split, dict(facts or {}))


def build_path_artifact(path: Path, manifest: Mapping[str, Any]) -> LocalArtifact:
    """Returns the artifact of a `Run.log_artifact` call: one file, or files of a folder. Raises like `build_artifact`.

    `manifest` has `role step step_kind split files facts`. Empty `files` mean all files. Facts read from the trainer's
    layout are added to the given ones.
    """
    folder = path if path.is_dir() else path.parent
    names = manifest["files"] or ([path.name] if folder != path else list_files_below(path))
    step = {name: manifest[name] for name in ("role", "step", "step_kind", "split")}
    return build_artifact(folder, names, **step, facts={**read_layout_facts(path, names), **manifest["facts"]})


def build_tokenizer_artifact(path: Path) -> LocalArtifact:
    """Returns the artifact of the tokenizer that decodes a run's token ids, with step 0.

    Raises OSError, FileChangedError or ValueError.
    """
    from rolloutdeck.protocol import compute_tokenizer_fingerprint, find_tokenizer_file, load_vocabulary

    file = find_tokenizer_file(path)
    facts = {"tokenizer": compute_tokenizer_fingerprint(load_vocabulary(file))}
    return build_artifact(file.parent, [file.name], "tokenizer", 0, facts=facts)


def read_layout_facts(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Returns the facts from the layout and the batch of a trainer's step; {} if the files are not such a step."""
    from rolloutdeck.trainer_api import LoadableStep, find_steps, read_step

    for location in find_steps(path):
        step = read_step(location) if set(location.files) <= set(names) else None
        if isinstance(step, LoadableStep) and path in (step.path, location.path):
            return {name: value for name, value in step.facts.items() if name != "role"}
    return {}


def preload_modules() -> None:
    """Imports the modules of the sender's thread. A fork while a thread imports breaks the module in the child."""
    import shlex  # noqa: F401

    from rolloutdeck.trainer_api import list_kinds, load_step_readers

    list_kinds()
    load_step_readers()


def list_files_below(folder: Path) -> list[str]:
    """Returns all files below a folder as relative paths with "/", without hidden files and folders."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


def read_file_stamp(path: Path) -> FileStamp:
    """Returns size, modification time (ns) and inode of a file. Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def hash_stable_file(path: Path) -> tuple[FileStamp, str]:
    """Returns a file's stamp and sha256, read in chunks. Raises OSError or FileChangedError."""
    stamp = read_file_stamp(path)
    cached = _hashes.get(path)
    if cached and cached[0] == stamp:
        return cached
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if read_file_stamp(path) != stamp:
        raise FileChangedError(f"{path} is still being written")
    cache_file_hash(path, stamp, digest.hexdigest())
    return stamp, digest.hexdigest()


def cache_file_hash(path: Path, stamp: FileStamp, sha256: str) -> None:
    """Stores a file's hash, so that the file is not read again while its stamp stays the same."""
    if len(_hashes) >= MAX_CACHED_HASHES:
        _hashes.clear()
    _hashes[path] = stamp, sha256


def build_import_command(path: Path, project: str, run: str, attempt: str) -> str:
    """Returns the shell command that uploads this folder to this attempt of the run."""
    import shlex  # not at the top: trainers that store no steps skip this import

    options = ["--project", project, "--run", clean_name(run, 200), "--attempt", attempt]
    return shlex.join(["rolloutdeck", "import", str(path), *options])
