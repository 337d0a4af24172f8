"""The threads that upload this process's spool, and those of ended processes in the same root, and send heartbeats."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolloutdeck.client import lease, spool
from rolloutdeck.client.artifact import build_import_command
from rolloutdeck.client.upload.artifact_uploads import (
    ArtifactUploadQueue,
    fetch_requested_files,
    is_permanent_rejection,
    register_artifact,
)
from rolloutdeck.client.upload.dispatcher import NEVER_DUE, Backoff, Dispatcher
from rolloutdeck.lib import (
    OnceLogger,
    RunClient,
    ServerClient,
    ServerUnreachableError,
    find_folder_owner,
    is_same_server,
    logger,
)
from rolloutdeck.protocol import HEARTBEAT_SECONDS, SpoolHeader

RESCAN_SECONDS = 15.0  # between checks for a server that is not configured yet
ADOPT_SECONDS = 60.0
MAX_ADOPTED_SPOOLS = 20  # that are being uploaded
MAX_HELD_SPOOLS = 80  # adopted ones that wait for the user: each is tried once a minute
UNRESPONSIVE_WARNING_SECONDS = 1.0  # of waiting for a server that accepts nothing, until a warning
MAX_UNRESPONSIVE_SECONDS = 10.0  # until the wait ends: long enough for a server that restarts


class Sender:
    """Uploads oldest first: earlier spools of the same run, then this process's, then those of other ended processes.

    `connect` returns the server that the environment names now, or None. It is called again after a refused token, so
    that a renewed token file is read.
    """

    def __init__(
        self,
        own: spool.Spool,
        connect: Callable[[], ServerClient | None],
        once_logger: OnceLogger,
        on_run_opened: Callable[[Any], None] = lambda data: None,
        header: SpoolHeader | None = None,
    ) -> None:
        self.own, self.connect, self.once_logger = own, connect, once_logger
        self.adopted: list[Path] = []
        self.server: ServerClient | None = None
        self.dispatcher = Dispatcher(once_logger, own, on_run_opened, self._on_artifact_registered)
        self.artifact_queue = ArtifactUploadQueue(
            on_message=lambda text: once_logger.log_once(text, "%s", text), retries_reading=True
        )
        self.header: SpoolHeader = header or {}
        self._artifact_due, self._artifact_backoff = 0.0, Backoff()
        self._work_event, self._closed, self._is_ending = threading.Event(), False, False
        self._take_over_at = self._connect_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError if no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="rolloutdeck-sender", daemon=True)
            thread.start()
            self._thread = thread

    def notify(self) -> None:
        """Wakes the thread because there is something new to upload."""
        self._work_event.set()

    def wait_until_empty(self, seconds: float) -> int:
        """Waits until this process's spool is empty, at most `seconds`. Returns how many files remain.

        Returns at once if waiting can't help: no server, or the user must act first. Returns earlier if the server
        accepts nothing; the remaining files are on disk.
        """
        start = time.monotonic()
        end, self._is_ending, is_warned = start + seconds, True, False
        self.dispatcher.clear_pauses()
        self._work_event.set()
        while (remaining := len(self.own.list_files())) and (now := time.monotonic()) < end:
            unresponsive = self._compute_unresponsive_seconds(start)
            if self._is_blocked() or unresponsive >= MAX_UNRESPONSIVE_SECONDS:
                break
            if unresponsive >= UNRESPONSIVE_WARNING_SECONDS and not is_warned:
                extra_seconds = min(end - now, MAX_UNRESPONSIVE_SECONDS - unresponsive)
                logger.warning("%d files still wait for the server; trying %.0f s longer.", remaining, extra_seconds)
                is_warned = True
            time.sleep(0.02)
        self._is_ending = False
        return remaining

    def _is_blocked(self) -> bool:
        """Whether no thread uploads, or the user must act first."""
        is_unconnected = self.server is None and self.connect() is None
        return self._thread is None or self.own.folder in self.dispatcher.action_required_reasons or is_unconnected

    def _compute_unresponsive_seconds(self, start: float) -> float:
        """Returns for how many seconds after `start` the server has accepted nothing.

        Returns 0 while an upload takes longer, which may be a large file.
        """
        dispatcher, now = self.dispatcher, time.monotonic()
        is_recent = dispatcher.failed_at >= max(start, now - UNRESPONSIVE_WARNING_SECONDS)
        is_failing = dispatcher.last_error and is_recent
        return now - max(start, dispatcher.failing_since) if is_failing else 0.0

    def close(self) -> None:
        """Stops after the current upload and releases the leases of adopted spools."""
        self._closed = True
        self._work_event.set()
        for folder in self.adopted:
            lease.release_lease(folder)

    def _run(self) -> None:
        while not self._closed:
            try:
                pause = self._send_next()
            except Exception:  # the thread must run as long as the training
                logger.exception("The sender failed unexpectedly. It retries in a minute.")
                pause = 60.0
            if pause > 0:
                self._work_event.wait(min(pause, 0.1 if self._is_ending else ADOPT_SECONDS))
            self._work_event.clear()
            if self._is_ending:
                self.dispatcher.clear_pauses()

    def _send_next(self) -> float:
        now = time.monotonic()
        if (self.server is None or self.dispatcher.is_token_refused) and now >= self._connect_at:
            self.server, self._connect_at = self.connect(), now + RESCAN_SECONDS
        if self.server is None:
            return RESCAN_SECONDS
        if now >= self._take_over_at:
            self._take_over_at = now + ADOPT_SECONDS
            try:
                self._remove_empty_adopted()  # also while another one waits for the user
                self._take_over_spools(self.server.url)
            except OSError as error:  # this process's own files must be uploaded nevertheless
                logger.debug("The spools of other processes cannot be taken over: %s", error)
        pause = self.dispatcher.send_next(self.server, self._list_folders())
        if pause == NEVER_DUE:
            self._remove_empty_adopted()
        return min(pause, self._upload_requested(self.server)) if pause > 0 else pause

    def poll_requested_files(self) -> None:
        """Asks which files of this process the server requests; called with the heartbeat.

        Raises ServerUnreachableError.
        """
        if self.server and self.artifact_queue.artifacts:
            response = fetch_requested_files(RunClient(self.server, self.header, timeout=10.0).request)
            data = response.json() if response.is_success else None
            self.artifact_queue.enqueue_requested(data.get("files") if isinstance(data, dict) else None)
            if self.artifact_queue.pending_count:
                self.notify()

    def _on_artifact_registered(self, data: Any) -> None:
        """Adds a registered artifact of this run to the queue, since the server may request its files later."""
        uid, artifact = data
        if uid != self.own.uid:
            return
        if self.artifact_queue.state_file is None:
            # Artifacts of an earlier attempt on this machine can be uploaded too.
            self.artifact_queue.persist_to(self.own.root / f"{uid}.artifacts.jsonl")
        self.artifact_queue.add(artifact)

    def _report_missing(self, server: ServerClient) -> None:
        """Reports files that can't be uploaded any more, so that the pin shows it. Raises ServerUnreachableError."""
        request, attempt = RunClient(server, self.header).request, self.header["attempt"]
        while self.artifact_queue.missing_artifacts:
            artifact, reason = self.artifact_queue.missing_artifacts[0]
            command = build_import_command(artifact.path, self.header["project"], self.header["name"], attempt)
            response = register_artifact(request, artifact, attempt, command, missing_reason=reason)
            if not (response.is_success or is_permanent_rejection(response)):
                break  # the server is busy or restarts: the next turn reports it again
            self.artifact_queue.missing_artifacts.popleft()

    def _upload_requested(self, server: ServerClient) -> float:
        """Uploads one part of a requested file if the spool is empty.

        Returns the seconds until the next call is useful.
        """
        now = time.monotonic()
        has_work = self.artifact_queue.pending_count or self.artifact_queue.missing_artifacts
        if not has_work or now < self._artifact_due:
            return self._artifact_due - now if has_work else NEVER_DUE
        try:
            try:
                response = self.artifact_queue.upload_next(RunClient(server, self.header).request)
            finally:  # also if the next file can't be read now
                self._report_missing(server)
        except ServerUnreachableError as error:
            logger.debug("A requested file is uploaded later: %s", error)
            response = None
        except OSError as error:
            message = "A requested file can't be read now and is uploaded later: %s"
            self.once_logger.log_once(f"unreadable {error.filename}", message, error)
            response = None
        if response and response.is_from_server and response.status < 500 and response.status not in (401, 403, 429):
            self._artifact_backoff.reset()
            return 0.0
        self._artifact_due = now + (pause := self._artifact_backoff.next_pause())
        return pause

    def _list_folders(self) -> list[Path]:
        same_run = [folder for folder in self.adopted if spool.parse_spool_run_uid(folder) == self.own.uid]
        own = [self.own.folder] if self.own.folder else []
        return [*same_run, *own, *(folder for folder in self.adopted if folder not in same_run)]

    def _take_over_spools(self, url: str) -> None:
        """Takes over spools of ended processes of the same user, first those of this run.

        Other users' spools are not taken: a spool names files, which the sender reads with its own rights.
        """
        our_owner = find_folder_owner(self.own.folder) if self.own.folder else os.geteuid()
        folders = spool.find_spool_folders(self.own.root)
        for folder in sorted(folders, key=lambda folder: spool.parse_spool_run_uid(folder) != self.own.uid):
            held = sum(adopted in self.dispatcher.action_required_reasons for adopted in self.adopted)
            if held >= MAX_HELD_SPOOLS or len(self.adopted) - held >= MAX_ADOPTED_SPOOLS:
                break
            if our_owner is None or find_folder_owner(folder) != our_owner:
                continue
            spool_server = lease.read_spool_server(folder)
            if folder in (self.own.folder, *self.adopted) or (spool_server and not is_same_server(spool_server, url)):
                continue
            if spool.list_spool_files(folder) and (new_folder := lease.take_over_spool(folder, url)):
                logger.info("Sending what an earlier process left in %s.", folder)
                self.adopted.append(new_folder)

    def _remove_empty_adopted(self) -> None:
        for folder in [folder for folder in self.adopted if not spool.list_spool_files(folder)]:
            self.adopted.remove(folder)
            spool.remove_spool_folder(folder)


class Heartbeat:
    """The thread that sends a heartbeat every half minute, polls for requested files, and renews this process's leases.

    A lost heartbeat is not repeated: the next one has the full state.
    """

    def __init__(self, sender: Sender, header: SpoolHeader, get_step: Callable[[], int | None]) -> None:
        self.sender, self.header, self.get_step = sender, header, get_step
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError if no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="rolloutdeck-heartbeat", daemon=True)
            thread.start()
            self._thread = thread

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        due = time.monotonic() + HEARTBEAT_SECONDS
        while not self._closed.wait(min(lease.LEASE_RENEWAL_SECONDS, HEARTBEAT_SECONDS)):
            try:
                self.sender.own.renew_lease()
                for folder in list(self.sender.adopted):
                    lease.renew_lease(folder)
                if time.monotonic() >= due:
                    due = time.monotonic() + HEARTBEAT_SECONDS
                    self.send()
                    self.sender.poll_requested_files()
            except Exception:  # the leases must be renewed as long as the training runs
                logger.debug("A heartbeat failed.", exc_info=True)

    def send(self) -> None:
        """Sends one heartbeat. Does nothing if the server is unreachable."""
        server, own = self.sender.server, self.sender.own
        if server is None:
            return
        body = {"attempt": self.header["attempt"], "step": self.get_step(), "dropped": {own.name: dict(own.dropped)}}
        try:
            RunClient(server, self.header, timeout=10.0).send_json("POST", "heartbeat/", body)
        except ServerUnreachableError as error:
            logger.debug("No heartbeat: %s", error)
