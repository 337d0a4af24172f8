"""The thread that brings this process's spool to the server, and those of dead neighbours in the same root."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rolloutdeck.client import lease, spool
from rolloutdeck.client.artifact import build_import_command
from rolloutdeck.client.artifact_uploads import ArtifactUploadQueue, fetch_requested_files, register_artifact
from rolloutdeck.client.dispatcher import NEVER_DUE, Backoff, Dispatcher
from rolloutdeck.lib import (
    OnceLogger,
    RunClient,
    ServerClient,
    ServerUnreachableError,
    find_folder_owner,
    is_same_server,
    logger,
)
from rolloutdeck.protocol import SpoolHeader

RESCAN_SECONDS = 15.0  # seconds between looks for a server that is not configured yet
ADOPT_SECONDS = 60.0
MAX_ADOPTED_SPOOLS = 20
SAY_SECONDS = 1.0  # of waiting for a server that takes nothing, before a word about it,
MAX_UNRESPONSIVE_SECONDS = 10.0  # and before waiting is given up: long enough for one that is started anew


class Sender:
    """Sends oldest first: earlier spools of the same run, then this process's, then other dead neighbours'.

    `connect` returns the server as the environment names it now, None where it names none; it is asked again after a
    refused token, so that a renewed token file is seen.
    """

    def __init__(
        self,
        own: spool.Spool,
        connect: Callable[[], ServerClient | None],
        voice: OnceLogger,
        opened: Callable[[Any], None] = lambda data: None,
        header: SpoolHeader | None = None,
    ) -> None:
        self.own, self.connect, self.voice = own, connect, voice
        self.adopted: list[Path] = []
        self.server: ServerClient | None = None
        self.courier = Dispatcher(voice, own, opened, self._registered)
        self.shelf = ArtifactUploadQueue(say=lambda text: voice.log_once(text, "%s", text))
        self.header: SpoolHeader = header or {}
        self._artifact_due, self._artifact_pauses = 0.0, Backoff()
        self._wake, self._closed, self._hurried = threading.Event(), False, False
        self._adopt_at = self._connect_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError when the interpreter is about to end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rolloutdeck-sender", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """There is something new to send."""
        self._wake.set()

    def drain(self, seconds: float) -> int:
        """Waits until this process's spool is empty, at most `seconds`; how many files still wait.

        Ends at once when waiting can't help: no server, or a person must act first; and sooner where the server takes
        nothing, since what waits is on the disk.
        """
        start = time.monotonic()
        end, self._hurried, said = start + seconds, True, False
        self.courier.hurry()
        self._wake.set()
        while (left := len(self.own.waiting())) and (now := time.monotonic()) < end:
            deaf = self._deaf(start)
            if self._helpless() or deaf >= MAX_UNRESPONSIVE_SECONDS:
                break
            if deaf >= SAY_SECONDS and not said:
                longer = min(end - now, MAX_UNRESPONSIVE_SECONDS - deaf)
                logger.warning("%d files still wait for the server; trying %.0f s longer.", left, longer)
                said = True
            time.sleep(0.02)
        self._hurried = False
        return left

    def _helpless(self) -> bool:
        """Whether nobody sends, or a person must act first."""
        unconnected = self.server is None and self.connect() is None
        return self._thread is None or self.own.folder in self.courier.kept or unconnected

    def _deaf(self, start: float) -> float:
        """For how many seconds after `start` the server has taken nothing; 0 while a try is longer under way, which may
        be a large file."""
        tried = self.courier
        now = time.monotonic()
        failing = tried.trouble and tried.failed_at >= start and now - tried.failed_at < SAY_SECONDS
        return now - max(start, tried.failing_since) if failing else 0.0

    def close(self) -> None:
        """Stops after the delivery under way and gives the neighbours' spools back."""
        self._closed = True
        self._wake.set()
        for folder in self.adopted:
            lease.release_lease(folder)

    def _run(self) -> None:
        while not self._closed:
            try:
                pause = self._turn()
            except Exception:  # the thread must live as long as the training
                logger.exception("The sender stumbled; it goes on in a minute.")
                pause = 60.0
            if pause > 0:
                self._wake.wait(min(pause, 0.1 if self._hurried else ADOPT_SECONDS))
            self._wake.clear()
            if self._hurried:
                self.courier.hurry()

    def _turn(self) -> float:
        now = time.monotonic()
        if (self.server is None or self.courier.denied) and now >= self._connect_at:
            self.server, self._connect_at = self.connect(), now + RESCAN_SECONDS
        if self.server is None:
            return RESCAN_SECONDS
        if now >= self._adopt_at:
            self._adopt(self.server.url)
            self._adopt_at = now + ADOPT_SECONDS
        pause = self.courier.turn(self.server, self._folders())
        if pause == NEVER_DUE:
            self._clear_adopted()
        return min(pause, self._send_wanted(self.server)) if pause > 0 else pause

    def ask_wanted(self) -> None:
        """Asks which bytes a pin wants of this process; called with the heartbeat. Raises ServerUnreachableError."""
        if self.server and self.shelf.artifacts:
            answer = fetch_requested_files(RunClient(self.server, self.header, timeout=10.0).request)
            told = answer.json() if answer.is_success else None
            self.shelf.want(told.get("files") if isinstance(told, dict) else None)
            if self.shelf.busy:
                self.wake()

    def _registered(self, data: Any) -> None:
        """The server was told of an artifact; of this process's run, it may want the bytes later."""
        uid, found = data
        if uid != self.own.uid:
            return
        if self.shelf.memory is None:  # what an earlier launch on this machine told can be sent as well
            self.shelf.keep_in(self.own.below / f"{uid}.artifacts.jsonl")
        self.shelf.put(found)

    def _tell_lost(self, server: ServerClient) -> None:
        """A person who pinned the step sees that its bytes can't come. Raises ServerUnreachableError."""
        while self.shelf.lost:
            found, why = self.shelf.lost[0]
            told = self.header["project"], self.header["name"], self.header["attempt"]
            command = build_import_command(found.path, *told)
            register_artifact(RunClient(server, self.header).request, found, self.header["attempt"], command, gone=why)
            self.shelf.lost.popleft()

    def _send_wanted(self, server: ServerClient) -> float:
        """One part of a wanted file, while nothing waits in the spool; seconds until the next is worth it."""
        now = time.monotonic()
        waits = self.shelf.busy or self.shelf.lost
        if not waits or now < self._artifact_due:
            return self._artifact_due - now if waits else NEVER_DUE
        try:
            answer = self.shelf.send(RunClient(server, self.header).request)
            self._tell_lost(server)
        except ServerUnreachableError as error:
            logger.debug("A wanted file waits: %s", error)
            answer = None
        if (
            answer is not None
            and answer.is_from_server
            and answer.status < 500
            and answer.status not in (401, 403, 429)
        ):
            self._artifact_pauses.reset()
            return 0.0
        pause = self._artifact_pauses.next()
        self._artifact_due = now + pause
        return pause

    def _folders(self) -> list[Path]:
        same = [folder for folder in self.adopted if spool.parse_spool_run_uid(folder) == self.own.uid]
        own = [self.own.folder] if self.own.folder else []
        return [*same, *own, *(folder for folder in self.adopted if folder not in same)]

    def _adopt(self, url: str) -> None:
        """Takes over what dead neighbours of the same user left: a spool names files, which are read with the rights of
        whoever sends it."""
        us = find_folder_owner(self.own.folder) if self.own.folder else os.geteuid()
        for folder in spool.find_spool_folders(self.own.below):
            if len(self.adopted) >= MAX_ADOPTED_SPOOLS:
                break
            if us is None or find_folder_owner(folder) != us:
                continue
            meant = lease.read_spool_server(folder)
            if folder in (self.own.folder, *self.adopted) or (meant and not is_same_server(meant, url)):
                continue
            if spool.list_spool_files(folder) and (taken := lease.take_over_spool(folder, url)):
                logger.info("Sending what an earlier process left in %s.", folder)
                self.adopted.append(taken)

    def _clear_adopted(self) -> None:
        for folder in [folder for folder in self.adopted if not spool.list_spool_files(folder)]:
            self.adopted.remove(folder)
            spool.remove_spool_folder(folder)
