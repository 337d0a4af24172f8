"""A step's files as an artifact: which they are, their hashes, and what the server is told of them.

Nothing is copied: the bytes stay where the trainer wrote them until they are wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.client.launch import host_name, word
from rolloutdeck.protocol import manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rolloutdeck.trainer_api.types import SkipFolder

CHUNK = 1 << 20
MOST_REMEMBERED = 20_000  # hashes in memory, 200 bytes each

Stamp = tuple[int, int, int]  # size, mtime_ns, inode

_hashes: dict[Path, tuple[Stamp, str]] = {}


class Unsteady(Exception):
    """A file changed while it was read: it is still being written."""


@dataclass(frozen=True)
class Artifact:
    """`files`: {path below `path`: {"sha256", "bytes"}}, as they were when they had these `stamps`."""

    path: Path
    role: str
    step: int
    files: Mapping[str, Mapping[str, Any]]
    stamps: Mapping[str, Stamp]
    step_kind: str = "global_step"
    split: str = "train"
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The artifact's id, the same wherever the same files lie."""
        return manifest.key_of(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return manifest.size_of(self.files)

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
            "origin": {"host": host_name(), "path": str(self.path), "command": command},
            "send_now": send_now,
            "gone": gone,
        }


def measured(
    path: Path,
    names: Iterable[str],
    role: str,
    step: int,
    *,
    step_kind: str = "global_step",
    split: str = "train",
    facts: Mapping[str, Any] | None = None,
) -> Artifact:
    """Hashes the files `names` below `path`, each once as long as its stamp stays.

    Raises OSError, Unsteady, and ValueError where they make no manifest.
    """
    files, stamps = {}, {}
    for name in names:
        stamps[name], sha256 = sha256_of(path / name)
        files[name] = {"sha256": sha256, "bytes": stamps[name][0]}
    manifest.check(files)
    return Artifact(path, role, step, files, stamps, step_kind, split, dict(facts or {}))


def of_folder(found: SkipFolder, facts: Mapping[str, Any] | None = None) -> Artifact:
    """The artifact of a step that a trainer left. Raises as `measured`."""
    return measured(
        found.path,
        found.files,
        found.role,
        found.step,
        step_kind=found.step_kind,
        facts={**found.facts, **(facts or {})},
    )


def of_path(path: Path, told: Mapping[str, Any]) -> Artifact:
    """The artifact that `Run.log_artifact` named: a file, or all files of a folder. Raises as `measured`.

    `told` has `role step step_kind split files facts`; no `files` means all. Facts that the trainer's own layout tells
    are added to those given.
    """
    folder = path if path.is_dir() else path.parent
    names = told["files"] or ([path.name] if folder != path else below(path))
    return measured(
        folder,
        names,
        told["role"],
        told["step"],
        step_kind=told["step_kind"],
        split=told["split"],
        facts={**facts_of(path, names), **told["facts"]},
    )


def of_tokenizer(path: Path) -> Artifact:
    """The tokenizer that a run's token ids belong to, kept at step 0. Raises OSError, Unsteady, ValueError."""
    from rolloutdeck.protocol import tokenizer

    file = tokenizer.file_of(path)
    facts = {"tokenizer": tokenizer.fingerprint(tokenizer.vocabulary(file))}
    return measured(file.parent, [file.name], "tokenizer", 0, facts=facts)


def facts_of(path: Path, names: Collection[str]) -> dict[str, Any]:
    """What the layout and the batch of a trainer's own step tell, which are these files; {} for anything else."""
    from rolloutdeck.trainer_api.registry import find_steps, read_step
    from rolloutdeck.trainer_api.types import SkipFolder

    for spot in find_steps(path):
        if not set(spot.files) <= set(names):
            continue
        found = read_step(spot)
        if isinstance(found, SkipFolder) and path in (found.path, spot.path):
            return {name: fact for name, fact in found.facts.items() if name != "role"}
    return {}


def prepare() -> None:
    """Loads what the sender's thread will need: a fork while a thread imports spoils the module for the child."""
    import shlex  # noqa: F401

    from rolloutdeck.safe_pickle.batches import batch  # noqa: F401
    from rolloutdeck.trainer_api import registry

    registry.list_kinds()
    registry.load_step_readers()


def below(folder: Path) -> list[str]:
    """All files below a folder as relative paths with "/"; hidden ones are passed over."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


def stamp_of(path: Path) -> Stamp:
    """Raises OSError."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def sha256_of(path: Path) -> tuple[Stamp, str]:
    """A file's stamp and sha256, streamed. Raises OSError and Unsteady."""
    stamp = stamp_of(path)
    known = _hashes.get(path)
    if known and known[0] == stamp:
        return known
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
    if stamp_of(path) != stamp:
        raise Unsteady(f"{path} is still being written")
    remember(path, stamp, digest.hexdigest())
    return stamp, digest.hexdigest()


def remember(path: Path, stamp: Stamp, sha256: str) -> None:
    """Nobody needs to read this file again as long as its stamp stays."""
    if len(_hashes) >= MOST_REMEMBERED:
        _hashes.clear()
    _hashes[path] = stamp, sha256


def command_for(path: Path, project: str, run: str, attempt: str) -> str:
    """What sends the bytes of this folder to this run's launch, for a person to type."""
    import shlex  # not at the top: a trainer that keeps no steps need not wait for it

    words = ["rolloutdeck", "import", str(path), "--project", project, "--run", word(run, 200), "--attempt", attempt]
    return shlex.join(words)
