"""The spool and the threads of a run in this process: writer, sender, heartbeat, and the collection of its context."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rolloutdeck.client import redaction, writer
from rolloutdeck.client.spool import Spool
from rolloutdeck.client.upload import Heartbeat, Sender
from rolloutdeck.client.writer_items import NoteItem
from rolloutdeck.lib import OnceLogger, ServerClient, Settings, logger
from rolloutdeck.protocol import SpoolHeader

CONTEXT_SECONDS = 1.0  # at the end of a process, to wait for its context
FLUSH_SECONDS = 30.0  # at the end of a process, to write what is in memory; this needs no network


class RunThreads:
    """Writes what a run logs to its spool and uploads the spool. Belongs to one process; a forked child makes its own.

    `on_run_opened` gets the server's answer about the run; `get_step` returns the latest logged step for heartbeats.
    """

    def __init__(
        self,
        spool: Spool,
        header: SpoolHeader,
        once_logger: OnceLogger,
        queue_bytes: int,
        on_run_opened: Callable[[Any], None],
        get_step: Callable[[], int | None],
    ) -> None:
        self.spool, self._pid = spool, os.getpid()
        self.sender = Sender(spool, connect_server, once_logger, on_run_opened, header)
        self.writer = writer.SpoolWriter(spool, header, once_logger, self.sender.notify, queue_bytes)
        if function := Settings.from_environment().redact:
            self.writer.redactor = redaction.Redactor(function)
        self._heartbeat = Heartbeat(self.sender, header, get_step)
        self._context_thread: threading.Thread | None = None
        self.is_started = False

    def start(self) -> None:
        """Starts the threads that do not run yet. Raises RuntimeError if no thread can be started."""
        self.writer.start()
        self.sender.start()
        self._heartbeat.start()
        self.is_started = True

    def start_context(self, body: Mapping[str, Any], *, with_patch: bool) -> None:
        """Collects the context of this process in a thread and enqueues it together with `body`."""
        import subprocess  # noqa: F401 - not in the thread: a fork during the import breaks it in the child

        from rolloutdeck.client import context

        def collect() -> None:
            self.writer.enqueue(NoteItem("context", {**body, **context.collect_context(with_patch=with_patch)}))

        thread = threading.Thread(target=collect, name="rolloutdeck-context", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started
            logger.debug("The context is not collected: %s", error)
        else:
            self._context_thread = thread

    def close(self, seconds: float) -> bool:
        """Writes what is in memory and uploads for at most `seconds`. Returns whether all of it is on disk."""
        end = time.monotonic() + seconds
        if self._context_thread and self._pid == os.getpid():
            self._context_thread.join(min(CONTEXT_SECONDS, seconds))
        is_durable = self.writer.flush(max(seconds, FLUSH_SECONDS))
        try:
            self.sender.wait_until_empty(max(0.0, end - time.monotonic()))
        finally:
            self.writer.close()
            self.sender.close()
            self._heartbeat.close()
        return is_durable


def connect_server() -> ServerClient | None:
    """Returns a client for the server that the environment or the local server's file names now; None if none."""
    settings = Settings.from_environment()
    return ServerClient(settings.url, settings.token, settings.ca_bundle) if settings.url else None
