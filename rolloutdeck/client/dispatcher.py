"""Decides which waiting file goes next, and what happens to it after the server's answer.

Used by the sender's thread and by `rolloutdeck sync`; it neither sleeps nor starts threads.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolloutdeck.client import delivery, lease, spool
from rolloutdeck.client.delivery import UploadOutcome
from rolloutdeck.lib import OnceLogger, RunClient, ServerClient, ServerUnreachableError, logger
from rolloutdeck.protocol import SpoolHeader

MIN_BACKOFF_SECONDS = 0.5  # seconds after a failure; doubles with each further one
MAX_BACKOFF_SECONDS = 60.0
SUSPECT = 3  # failures of a file after which another one shows whether it is the file or the server
ACTION_REQUIRED_PAUSE = 60.0  # before something is tried again that a person must put right
MAX_METRICS_FILES = 500  # most files that travel as one request
NEVER_DUE = float("inf")


class Backoff:
    """Growing pauses with jitter, so that many trainers don't come back to a server in one moment."""

    def __init__(self) -> None:
        self.failures = 0

    def next(self, asked: float = 0.0) -> float:
        """Seconds to wait; never less than what the server asked for."""
        pause = min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return max(asked, pause * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        self.failures = 0


class Dispatcher:
    """Sends the files of spool folders one delivery at a time, oldest first.

    A file is removed only after the server's receipt. `own` is the spool of this process, if it has one. `counts` has
    `sent rejected bytes`; `kept` says of a folder why its files stay until a person acts; `trouble` is the last failure
    that passes by itself, "" after a success; `failing_since` and `failed_at` are the first and the last of its row.
    """

    def __init__(
        self,
        voice: OnceLogger,
        own: spool.Spool | None = None,
        opened: Callable[[Any], None] = lambda data: None,
        registered: Callable[[Any], None] = lambda data: None,
    ) -> None:
        self.voice, self._own, self._opened, self._registered = voice, own, opened, registered
        self.counts: Counter[str] = Counter()
        self.kept: dict[Path, str] = {}
        self.trouble, self.denied = "", False
        self.failing_since = self.failed_at = 0.0
        self._backoff = Backoff()
        self._quiet_until = 0.0
        self._listed: dict[Path, list[spool.SpoolFile]] = {}
        self._failures: Counter[Path] = Counter()
        self._skipped: set[Path] = set()  # for one turn
        self._guilty: set[Path] = set()  # failed where another file did not
        self._due: dict[Path, float] = {}
        self._folder_due: dict[Path, float] = {}
        self._alone: set[Path] = set()
        self._rejected: dict[str, Counter[str]] = {}
        self._reported: dict[str, dict[str, int]] = {}

    def turn(self, server: ServerClient, folders: Sequence[Path]) -> float:
        """One delivery from the first folder that has something due.

        Returns the seconds until the next turn is worth it: 0 when it may follow at once, NOTHING when nothing waits.
        """
        now = time.monotonic()
        if now < self._quiet_until:
            return self._quiet_until - now
        soonest = NEVER_DUE
        for folder in folders:
            if (due := self._folder_due.get(folder, 0.0)) > now:
                soonest = min(soonest, due - now)
                continue
            batch = self._next(folder, now)
            if batch:
                self._settle(server, folder, batch, self._deliver(server, folder, batch))
                return max(0.0, self._quiet_until - time.monotonic())
            soonest = min(soonest, self._soonest(folder, now))
        if self._skipped:  # there was no other file to try
            self._skipped.clear()
            return 0.0
        return soonest

    def hurry(self) -> None:
        """Forgets the pauses because the process is about to end; a file that fails alone still lets others pass."""
        self._quiet_until = 0.0
        self._folder_due.clear()

    def _next(self, folder: Path, now: float) -> list[spool.SpoolFile]:
        """What travels next from this folder: one file, or the metrics that wait."""
        ready = self._ready(self._listed.get(folder, []), now)
        if not ready:
            self._listed[folder] = spool.list_spool_files(folder)
            ready = self._ready(self._listed[folder], now)
        if not ready or ready[0].kind != "metrics" or ready[0].path in self._alone:
            return ready[:1]
        batch: list[spool.SpoolFile] = []
        size = 0
        for file in ready:
            if file.kind == "metrics" and file.path not in self._alone:
                size += file.size
                if batch and (size > delivery.MAX_METRICS_BATCH_BYTES or len(batch) >= MAX_METRICS_FILES):
                    break
                batch.append(file)
        return batch

    def _ready(self, files: list[spool.SpoolFile], now: float) -> list[spool.SpoolFile]:
        """The files that are due; the end of a run waits until all else of its folder is there."""
        due = [file for file in files if self._due.get(file.path, 0.0) <= now and file.path not in self._skipped]
        return [file for file in due if file.kind != "finish" or len(files) == 1]

    def _soonest(self, folder: Path, now: float) -> float:
        waits = [self._due[file.path] - now for file in self._listed.get(folder, []) if file.path in self._due]
        return max(0.01, min(waits)) if waits else NEVER_DUE

    def _deliver(self, server: ServerClient, folder: Path, batch: list[spool.SpoolFile]) -> UploadOutcome:
        try:
            header, _ = spool.read_spool_header(batch[0].path)
            if header["kind"] != "run":
                self._report(server, folder, header)
        except ServerUnreachableError as error:
            return UploadOutcome("unreachable", str(error))
        except (OSError, ValueError):
            pass  # delivery says what is wrong with it
        return delivery.upload_spool_files(server, batch)

    def _report(self, server: ServerClient, folder: Path, header: SpoolHeader) -> None:
        """Tells the run what this spool could not keep, if that is news. Raises ServerUnreachableError."""
        name = lease.read_spool_name(folder)
        if self._own and name == self._own.name:
            dropped = dict(self._own.dropped)
        else:
            dropped = dict(Counter(header.get("dropped", {})) + self._rejected.get(name, Counter()))
        if not dropped or self._reported.get(name) == dropped:
            return
        body = {"attempt": header["attempt"], "dropped": {name: dropped}}
        if RunClient(server, header).send_json("POST", "heartbeat/", body).is_success:
            self._reported[name] = dropped

    def _settle(self, server: ServerClient, folder: Path, batch: list[spool.SpoolFile], outcome: UploadOutcome) -> None:
        if outcome.verdict in ("sent", "rejected", "gone"):
            self._answered(folder)
        if outcome.verdict == "sent":
            self._remove(folder, batch, outcome)
        elif outcome.verdict == "rejected" and len(batch) > 1:
            self._alone.update(file.path for file in batch)  # one of them is bad: find out which
        elif outcome.verdict == "rejected":
            self._reject(server, folder, batch[0], outcome.reason)
        elif outcome.verdict == "kept":
            self._keep(folder, outcome)
        elif outcome.verdict in ("later", "unreachable"):
            self._postpone(batch, outcome)
        if outcome.verdict != "sent":  # more may have come meanwhile, to travel together
            self._listed.pop(folder, None)

    def _answered(self, folder: Path) -> None:
        self._backoff.reset()
        self.trouble, self.denied = "", False
        self.kept.pop(folder, None)
        if self.voice.reset("unreachable"):
            logger.info("The server answers again; what waits is being sent.")

    def _remove(self, folder: Path, batch: list[spool.SpoolFile], outcome: UploadOutcome) -> None:
        done = {file.path for file in batch}
        for file in batch:
            file.path.unlink(missing_ok=True)
            self._forget(file)
            if self._own and folder == self._own.folder:
                self._own.sent(file)
            self.counts["sent"] += 1
            self.counts["bytes"] += file.size
        self._listed[folder] = [file for file in self._listed.get(folder, []) if file.path not in done]
        self._skipped.clear()
        self._guilty.update(self._failures)
        if batch[0].kind == "run":
            self._opened(outcome.data)
        elif batch[0].kind == "artifact":
            self._registered(outcome.data)

    def _reject(self, server: ServerClient, folder: Path, file: spool.SpoolFile, reason: str) -> None:
        """Puts aside what the server will never take, with its reason beside it, and counts it."""
        aside = folder / spool.REJECTED_FOLDER
        self._forget(file)
        try:
            aside.mkdir(exist_ok=True)
            kept = file.path.rename(aside / file.path.name)
            (aside / f"{file.path.name}.txt").write_text(reason + "\n", "utf-8")
        except OSError as error:
            self._keep(folder, UploadOutcome("kept", f"{reason} It can't be moved to {aside}: {error}"))
            return
        self.counts["rejected"] += 1
        self.voice.log_once("rejected", "The server refused a file for good: %s It is kept in %s.", reason, aside)
        name, why = lease.read_spool_name(folder), "files: rejected by the server"
        if self._own and name == self._own.name:
            self._own.drop(why)
        else:
            self._rejected.setdefault(name, Counter())[why] += 1
        with suppress(ServerUnreachableError, OSError, ValueError):
            self._report(server, folder, spool.read_spool_header(kept)[0])

    def _keep(self, folder: Path, outcome: UploadOutcome) -> None:
        until = time.monotonic() + ACTION_REQUIRED_PAUSE
        self._folder_due[folder] = until
        self.kept[folder], self.denied = outcome.reason, outcome.denied
        if outcome.denied:  # the same token is refused for every folder
            self._quiet_until = until
        self.voice.log_once(
            f"kept {outcome.reason}", "Data is kept in %s until this is put right: %s", folder, outcome.reason
        )

    def _postpone(self, batch: list[spool.SpoolFile], outcome: UploadOutcome) -> None:
        now = time.monotonic()
        self._skipped.clear()
        if outcome.verdict == "later":
            for file in batch:
                self._doubt(file.path, now)
        self._quiet_until = now + self._backoff.next(outcome.pause)
        self.failing_since = self.failing_since if self.trouble else now
        self.trouble, self.failed_at = outcome.reason, now
        self.voice.log_once("unreachable", "Sending fails, data waits on disk: %s", outcome.reason)

    def _doubt(self, path: Path, now: float) -> None:
        """Is it this file, or the server? A file steps back only when another one got through: order matters."""
        self._failures[path] += 1
        if path in self._guilty:
            self._due[path] = now + min(
                MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(self._failures[path] - SUSPECT, 20)
            )
        elif self._failures[path] % SUSPECT == 0:
            self._skipped.add(path)

    def _forget(self, file: spool.SpoolFile) -> None:
        self._failures.pop(file.path, None)
        self._guilty.discard(file.path)
        self._due.pop(file.path, None)
        self._alone.discard(file.path)
