"""The state of a watch: what it has sent. If the file is lost, files are sent again, which the server recognizes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rolloutdeck.lib import open_replacement

VERSION = 1
# The keys in the file -> the fields of WatchState.
FIELDS_BY_KEY = {
    "attempt": "attempt",
    "number": "number",
    "top": "last_steps",
    "splits": "splits",
    "before": "previous_attempt",
    "since": "attempt_start",
}


@dataclass
class SentFile:
    """What the server has of one file.

    `stamp` is (size, mtime_ns, inode) at that time. Complete files: `sha256`, "" if the server rejected it, and `step`.
    Growing files: the first `offset` bytes are sent, `head` and `tail` are digests of the first bytes and of the last
    bytes before the offset, and `generation` increases when the file is replaced.
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
    """The state of the watch of one run.

    `attempt` is the current one; `last_steps` has the last step sent in it, by axis. `splits` are those of folders
    whose name does not show it. Complete files written before `attempt_start` (mtime in ns) belong to
    `previous_attempt`. `server` is the id of the server that has the files, "" if an older one did not say it.
    `is_new`: there was no state file, so the server may have other attempts already.
    """

    path: Path
    attempt: str
    number: int = 1
    last_steps: dict[str, int] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)
    files: dict[str, SentFile] = field(default_factory=dict)
    previous_attempt: str = ""
    attempt_start: int = 0
    server: str = ""
    is_new: bool = True

    @classmethod
    def load(cls, folder: Path, key: tuple[str, ...], attempt: str) -> WatchState:
        """Loads the state stored below `folder` under `key`, else returns a new one. A damaged file is ignored."""
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
        path = folder / f"{name}.json"
        try:
            data: Any = json.loads(path.read_bytes())
            if data["version"] != VERSION or data["key"] != list(key):
                raise ValueError("written by another version")
            files = {
                source: SentFile(**{**sent, "stamp": tuple(sent["stamp"])}) for source, sent in data["files"].items()
            }
            fields = {name: data[key] for key, name in FIELDS_BY_KEY.items()}
            return cls(path, **fields, files=files, server=str(data.get("server", "")), is_new=False)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path, attempt)

    def next_attempt(self, attempt_start: int = 0) -> None:
        """Starts the next attempt, because a step was written again after a later one.

        A watch that is killed before it saves the state computes the same key again.
        """
        base = self.attempt if self.number == 1 else self.attempt.rpartition("-")[0]
        self.number += 1
        self.previous_attempt, self.attempt_start = self.attempt, attempt_start
        self.attempt, self.last_steps = f"{base}-{self.number}", {}

    def clear(self, attempt: str) -> None:
        """Forgets what was sent. `attempt` is the first one again."""
        self.attempt, self.number, self.previous_attempt, self.attempt_start = attempt, 1, "", 0
        self.last_steps, self.files = {}, {}

    def save(self, key: tuple[str, ...]) -> None:
        """Writes the file in one step, so that it survives a power cut. Raises OSError."""
        data: dict[str, Any] = {"version": VERSION, "key": list(key), "server": self.server}
        data |= {name: getattr(self, field_name) for name, field_name in FIELDS_BY_KEY.items()}
        data["files"] = {source: asdict(sent) for source, sent in self.files.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open_replacement(self.path, mode=0o600, is_synced=True) as file:
            file.write(json.dumps(data).encode())
