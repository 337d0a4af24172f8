"""What a watch has sent, in a small file that is always whole. Losing it costs re-sends, which the server knows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
PLAIN = ("attempt", "number", "top", "splits", "before", "since")


@dataclass
class SentFile:
    """What the server has of one file.

    `stamp` is (size, mtime_ns, inode) as it was then; `sha256` that of a whole file, "" where the server refused it;
    `step` a whole file's. Of a growing file: `offset` bytes are sent, `head` and `tail` are digests of its first bytes
    and of those before the offset, `generation` rises when it starts anew.
    """

    stamp: tuple[int, int, int]
    attempt: str
    sha256: str = ""
    step: int | None = None
    offset: int = 0
    generation: int = 0
    head: str = ""
    tail: str = ""


@dataclass
class WatchState:
    """`attempt` is the one that is being written; `top` the last step sent in it, by axis; `splits` those of folders
    that did not say it by name. Whole files written before `since` (mtime in ns) belong to the attempt `before`.
    `fresh`: there was no file, so other attempts may be on the server already."""

    path: Path
    attempt: str
    number: int = 1
    top: dict[str, int] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    files: dict[str, SentFile] = field(default_factory=dict)
    before: str = ""
    since: int = 0
    fresh: bool = True

    @classmethod
    def load(cls, folder: Path, key: tuple[str, ...], attempt: str) -> WatchState:
        """The state kept below `folder` under `key`, else a new one. A damaged file counts as none."""
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
        path = folder / f"{name}.json"
        try:
            kept: Any = json.loads(path.read_bytes())
            if kept["version"] != VERSION or kept["key"] != list(key):
                raise ValueError("written by another version")
            files = {
                source: SentFile(**{**sent, "stamp": tuple(sent["stamp"])}) for source, sent in kept["files"].items()
            }
            plain = {name: kept[name] for name in PLAIN}
            return cls(path, **plain, files=files, fresh=False)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path, attempt)

    def next_attempt(self, since: int = 0) -> None:
        """A step was written again after a later one: from here on it is another launch. A watch that is killed before
        it has saved this comes to the same key again."""
        base = self.attempt if self.number == 1 else self.attempt.rpartition("-")[0]
        self.number += 1
        self.before, self.since = self.attempt, since
        self.attempt, self.top = f"{base}-{self.number}", {}

    def save(self, key: tuple[str, ...]) -> None:
        """Whole or not at all: temporary file, fsync, rename. Raises OSError."""
        kept = {"version": VERSION, "key": list(key), **{name: getattr(self, name) for name in PLAIN}}
        kept["files"] = {source: asdict(sent) for source, sent in self.files.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
