"""Selects the spool file to upload next and handles the server's response.

Used by the sender's thread and by `rolloutdeck sync`. It neither sleeps nor starts threads.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rolloutdeck.client import lease, spool
from rolloutdeck.client.upload import delivery
from rolloutdeck.client.upload.delivery import UploadOutcome
from rolloutdeck.lib import OnceLogger, RunClient, ServerClient, ServerUnreachableError, logger
from rolloutdeck.protocol import SpoolHeader

MIN_BACKOFF_SECONDS = 0.5  # pause after a failure; it doubles with each further failure
MAX_BACKOFF_SECONDS = 60.0
# After this many failures of a file another file is tried, to find out if the file or the server fails.
SUSPECT_FAILURES = 3
ACTION_REQUIRED_PAUSE = 60.0  # before a retry of what only the user can fix
MAX_METRICS_FILES = 500  # in one request
NEVER_DUE = float("inf")


def _compute_backoff(failures: int) -> float:
    """Returns the pause after this many failures, in seconds."""
    return min(MAX_BACKOFF_SECONDS, MIN_BACKOFF_SECONDS * 2.0 ** min(failures, 20))


class Backoff:
    """Growing pauses with jitter, so that many trainers don't retry at the same moment."""

    def __init__(self) -> None:
        self.failures = 0

    def next_pause(self, min_seconds: float = 0.0) -> float:
        """Returns the seconds to wait, at least `min_seconds` (the server's request)."""
        pause = _compute_backoff(self.failures)
        self.failures += 1
        return max(min_seconds, pause * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        self.failures = 0


class Dispatcher:
    """Uploads the files of spool folders one at a time, oldest first.

    A file is deleted only after the server's receipt.

    `own_spool` is the spool of this process, if any. `counts` has `sent rejected bytes`. `action_required_reasons`
    says per folder why its files stay until the user acts. `last_error` is the last temporary failure, "" after a
    success; `failing_since` and `failed_at` are the times of the first and the last failure in a row.
    """

    def __init__(
        self,
        once_logger: OnceLogger,
        own_spool: spool.Spool | None = None,
        on_run_opened: Callable[[Any], None] = lambda data: None,
        on_artifact_registered: Callable[[Any], None] = lambda data: None,
    ) -> None:
        self.once_logger, self._own_spool = once_logger, own_spool
        self._on_run_opened, self._on_artifact_registered = on_run_opened, on_artifact_registered
        self.counts: Counter[str] = Counter()
        self.action_required_reasons: dict[Path, str] = {}
        self.last_error, self.is_token_refused = "", False
        self.failing_since = self.failed_at = 0.0
        self._backoff = Backoff()
        self._paused_until = 0.0
        self._listed_files: dict[Path, list[spool.SpoolFile]] = {}
        self._failures: Counter[Path] = Counter()
        self._skipped: set[Path] = set()  # for one call of `send_next`
        self._failing_alone: set[Path] = set()  # failed while another file was uploaded
        self._due_at: dict[Path, float] = {}
        self._folder_due_at: dict[Path, float] = {}
        self._send_alone: set[Path] = set()
        self._rejected_counts: dict[str, Counter[str]] = {}
        self._reported_drops: dict[str, dict[str, int]] = {}

    def send_next(self, server: ServerClient, folders: Sequence[Path]) -> float:
        """Uploads one batch from the first folder that has a file that is due.

        Returns the seconds until the next call is useful: 0 for at once, NEVER_DUE if no file waits.
        """
        now = time.monotonic()
        if now < self._paused_until:
            return self._paused_until - now
        next_due = NEVER_DUE
        for folder in folders:
            if (due := self._folder_due_at.get(folder, 0.0)) > now:
                next_due = min(next_due, due - now)
                continue
            if batch := self._next_batch(folder, now):
                self._apply_outcome(server, folder, batch, self._upload(server, folder, batch))
                return max(0.0, self._paused_until - time.monotonic())
            next_due = min(next_due, self._compute_next_due(folder, now))
        if self._skipped:  # there was no other file to try
            self._skipped.clear()
            return 0.0
        return next_due

    def clear_pauses(self) -> None:
        """Clears the pauses because the process is about to end, except those of files that fail alone."""
        self._paused_until = 0.0
        self._folder_due_at.clear()

    def _next_batch(self, folder: Path, now: float) -> list[spool.SpoolFile]:
        """Returns the next batch of this folder: one file, or the waiting metrics files."""
        due_files = self._select_due_files(self._listed_files.get(folder, []), now)
        if not due_files:
            self._listed_files[folder] = spool.list_spool_files(folder)
            due_files = self._select_due_files(self._listed_files[folder], now)
        if not due_files or due_files[0].kind != "metrics" or due_files[0].path in self._send_alone:
            return due_files[:1]
        batch: list[spool.SpoolFile] = []
        size = 0
        for file in due_files:
            if file.kind == "metrics" and file.path not in self._send_alone:
                size += file.size
                if batch and (size > delivery.MAX_METRICS_BATCH_BYTES or len(batch) >= MAX_METRICS_FILES):
                    break
                batch.append(file)
        return batch

    def _select_due_files(self, files: list[spool.SpoolFile], now: float) -> list[spool.SpoolFile]:
        """Returns the files that are due. The `finish` file is due only if it is the last one of its folder."""
        due = [file for file in files if self._due_at.get(file.path, 0.0) <= now and file.path not in self._skipped]
        return [file for file in due if file.kind != "finish" or len(files) == 1]

    def _compute_next_due(self, folder: Path, now: float) -> float:
        files = self._listed_files.get(folder, [])
        pauses = [self._due_at[file.path] - now for file in files if file.path in self._due_at]
        return max(0.01, min(pauses)) if pauses else NEVER_DUE

    def _upload(self, server: ServerClient, folder: Path, batch: list[spool.SpoolFile]) -> UploadOutcome:
        try:
            header, _ = spool.read_spool_header(batch[0].path)
            if header["kind"] != "run":
                self._report_dropped(server, folder, header)
        except ServerUnreachableError as error:
            return UploadOutcome("unreachable", str(error))
        except (OSError, ValueError):
            pass  # `upload_spool_files` reports what is wrong with the file
        return delivery.upload_spool_files(server, batch)

    def _report_dropped(self, server: ServerClient, folder: Path, header: SpoolHeader) -> None:
        """Reports the counts of dropped data of this spool to the run, if they changed.

        Raises ServerUnreachableError.
        """
        name = lease.read_spool_name(folder)
        if self._own_spool and name == self._own_spool.name:
            dropped = dict(self._own_spool.dropped)
        else:
            dropped = dict(Counter(header.get("dropped", {})) + self._rejected_counts.get(name, Counter()))
        if not dropped or self._reported_drops.get(name) == dropped:
            return
        body = {"attempt": header["attempt"], "dropped": {name: dropped}}
        if RunClient(server, header).send_json("POST", "heartbeat/", body).is_success:
            self._reported_drops[name] = dropped

    def _apply_outcome(
        self, server: ServerClient, folder: Path, batch: list[spool.SpoolFile], outcome: UploadOutcome
    ) -> None:
        if outcome.state in ("sent", "rejected", "taken_over"):
            self._clear_failure(folder)
        if outcome.state == "sent":
            self._remove_sent(folder, batch, outcome)
            if isinstance(outcome.data, dict) and (warning := outcome.data.get("warning")):
                self.once_logger.log_once("server warning", "Warning of the server: %s", str(warning))
        elif outcome.state == "rejected" and len(batch) > 1:
            self._send_alone.update(file.path for file in batch)  # one of them is bad: send each alone to find it
        elif outcome.state == "rejected":
            self._reject(server, folder, batch[0], outcome.reason)
        elif outcome.state == "action_required":
            self._hold_folder(folder, outcome)
        elif outcome.state in ("later", "unreachable"):
            self._postpone(batch, outcome)
        if outcome.state != "sent":  # list again: new files may join the batch
            self._listed_files.pop(folder, None)

    def _clear_failure(self, folder: Path) -> None:
        self._backoff.reset()
        self.last_error, self.is_token_refused = "", False
        self.action_required_reasons.pop(folder, None)
        if self.once_logger.reset("unreachable"):
            logger.info("The server responds again. The waiting files are being uploaded.")

    def _remove_sent(self, folder: Path, batch: list[spool.SpoolFile], outcome: UploadOutcome) -> None:
        removed = {file.path for file in batch}
        for file in batch:
            file.path.unlink(missing_ok=True)
            self._clear_file_state(file)
            if self._own_spool and folder == self._own_spool.folder:
                self._own_spool.mark_sent(file)
            self.counts["sent"] += 1
            self.counts["bytes"] += file.size
        self._listed_files[folder] = [file for file in self._listed_files.get(folder, []) if file.path not in removed]
        self._skipped.clear()
        self._failing_alone.update(self._failures)
        if batch[0].kind == "run":
            self._on_run_opened(outcome.data)
        elif batch[0].kind == "artifact":
            self._on_artifact_registered(outcome.data)

    def _reject(self, server: ServerClient, folder: Path, file: spool.SpoolFile, reason: str) -> None:
        """Moves a permanently rejected file and the reason into the `rejected` folder, and counts it."""
        rejected_folder = folder / spool.REJECTED_FOLDER
        self._clear_file_state(file)
        try:
            rejected_folder.mkdir(exist_ok=True)
            rejected_file = file.path.rename(rejected_folder / file.path.name)
            (rejected_folder / f"{file.path.name}.txt").write_text(reason + "\n", "utf-8")
        except OSError as error:
            reason = f"{reason} It can't be moved to {rejected_folder}: {error}"
            self._hold_folder(folder, UploadOutcome("action_required", reason))
            return
        self.counts["rejected"] += 1
        message = "The server rejected a file permanently: %s (moved to %s)"
        self.once_logger.log_once("rejected", message, reason, rejected_folder)
        name, label = lease.read_spool_name(folder), "files: rejected by the server"
        if self._own_spool and name == self._own_spool.name:
            self._own_spool.count_dropped(label)
        else:
            self._rejected_counts.setdefault(name, Counter())[label] += 1
        with suppress(ServerUnreachableError, OSError, ValueError):
            self._report_dropped(server, folder, spool.read_spool_header(rejected_file)[0])

    def _hold_folder(self, folder: Path, outcome: UploadOutcome) -> None:
        until = time.monotonic() + ACTION_REQUIRED_PAUSE
        self._folder_due_at[folder] = until
        self.action_required_reasons[folder], self.is_token_refused = outcome.reason, outcome.is_token_refused
        if outcome.is_token_refused:  # the same token is refused for every folder
            self._paused_until = until
        message = "Data stays in %s until this is fixed: %s"
        self.once_logger.log_once(f"action required {outcome.reason}", message, folder, outcome.reason)

    def _postpone(self, batch: list[spool.SpoolFile], outcome: UploadOutcome) -> None:
        now = time.monotonic()
        self._skipped.clear()
        if outcome.state == "later":
            for file in batch:
                self._postpone_suspect(file.path, now)
            if len(batch) > 1 and self._failures[batch[0].path] % SUSPECT_FAILURES == 0:
                self._send_alone.add(batch[0].path)  # to find out which of them fails
        self._paused_until = now + self._backoff.next_pause(outcome.pause)
        self.failing_since = self.failing_since if self.last_error else now
        self.last_error, self.failed_at = outcome.reason, now
        message = "The upload fails, so data stays on disk and is uploaded later: %s"
        self.once_logger.log_once("unreachable", message, outcome.reason)

    def _postpone_suspect(self, path: Path, now: float) -> None:
        """Postpones a failing file only if another file was uploaded since, because the order of files matters.

        Otherwise the server may be failing, not the file.
        """
        self._failures[path] += 1
        if path in self._failing_alone:
            self._send_alone.add(path)  # not with other metrics, which would fail with it
            self._due_at[path] = now + _compute_backoff(self._failures[path] - SUSPECT_FAILURES)
        elif self._failures[path] % SUSPECT_FAILURES == 0:
            self._skipped.add(path)

    def _clear_file_state(self, file: spool.SpoolFile) -> None:
        self._failures.pop(file.path, None)
        self._failing_alone.discard(file.path)
        self._due_at.pop(file.path, None)
        self._send_alone.discard(file.path)
