"""The journal of a judge: which samples were sent to the model, and what it answered.

Each line is on disk before the next thing happens: `sent` before the call, `answer` before anything else is done with
it, `refused` if the endpoint did not take it. So a command that was killed sends no sample again. A sample that was
sent and has neither line may have been answered: that is not known, and it is not sent again either.

A line `judge` says whose answers they are. A journal without it, as earlier versions wrote it, gets it at its end, and
so does one without a call.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rolloutdeck.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows: two commands could use one journal
    fcntl = None  # type: ignore[assignment]


class Journal:
    """One file, used by one command at a time if the file system has locks. Threads may share it. `judge` has the
    digest of what is asked, and of whom, and for messages the model and the name of the results."""

    def __init__(self, path: Path, judge: Mapping[str, str]) -> None:
        self.path, self.judge = path, judge
        self._owner: Mapping[str, str] = {}
        self.sent: set[str] = set()
        self._answers: dict[str, int] = {}  # sample -> offset of its line, in bytes
        self._lock = threading.Lock()

    def __enter__(self) -> Journal:
        """Reads what an earlier command wrote. Raises UsageError if another command uses the journal, if it is that of
        another judge, or if the file is no journal. Then the file stays as it is."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = open(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")  # noqa: PTH123
        except OSError as error:
            raise build_write_error(f"The journal {self.path} can't be written", error) from error
        if fcntl:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # SMB says EACCES
                self._file.close()
                raise UsageError(f"Another command uses the journal {self.path}. Wait until it ends.") from None
            except OSError:  # a file system without locks
                pass
        if not is_journal(self._file.readline()):
            self._file.close()
            raise UsageError(f"{self.path} is not the journal of a judge. Use another file.")
        end = self._read()
        if self._owner and self._owner["digest"] != self.judge["digest"] and (self.sent or self._answers):
            self._file.close()
            raise UsageError(f"The journal {self.path} has answers of {self._describe_owner()}. Use another file.")
        self._file.truncate(end)
        if self._owner.get("digest") != self.judge["digest"]:
            self._append({"event": "judge", **self.judge})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._file.close()

    def _read(self) -> int:
        """Returns where the last complete line ends."""
        end = self._file.seek(0)
        for line in iter(self._file.readline, b""):
            if not line.endswith(b"\n"):
                break  # a kill cut it
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self._apply(json.loads(line), end)
            end += len(line)
        return end

    def _describe_owner(self) -> str:
        names = [self._owner["model"], self._owner["name"]]
        differs = "; its prompt, rubric or --body differs" if names == [self.judge["model"], self.judge["name"]] else ""
        return f"another judge (model {names[0]}, --name {names[1]}){differs}"

    def _apply(self, line: dict[str, Any], offset: int) -> None:
        if line["event"] == "judge":
            self._owner = line
            return
        sample = line["sample"]
        match line["event"]:
            case "sent":
                self.sent.add(sample)
                self._answers.pop(sample, None)
            case "refused":
                self.sent.discard(sample)
            case "answer":
                self._answers[sample] = offset

    def write(self, event: str, sample: str, **fields: Any) -> None:
        """Writes a line and waits until it is on disk."""
        self._append({"event": event, "sample": sample, **fields})

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            offset = self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._apply(line, offset)

    def find_answer(self, sample: str) -> dict[str, Any] | None:
        """Returns the fields of the sample's answer."""
        with self._lock:
            offset = self._answers.get(sample)
            if offset is None:
                return None
            self._file.seek(offset)
            return dict(json.loads(self._file.readline()))

    def is_unanswered(self, sample: str) -> bool:
        """Returns whether the sample was sent and nothing is known of it."""
        return sample in self.sent and sample not in self._answers


def check_folder_writable(folder: Path) -> None:
    """Raises UsageError if no journal can be written in the folder. A full disk may still create an empty file."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
            file.flush()
    except OSError as error:
        raise build_write_error(f"No journal can be written in {folder}", error) from error


def build_write_error(problem: str, error: OSError) -> UsageError:
    return UsageError(f"{problem}: {error.strerror or error}. Choose another file with --journal.")


def is_journal(first: bytes) -> bool:
    """Whether a file that begins with this line may be a journal. A kill may have cut its only line."""
    if not first.endswith(b"\n"):
        return b'{"event": '.startswith(first[:10])
    try:
        line = json.loads(first)
    except ValueError:
        return False
    return isinstance(line, dict) and "event" in line
