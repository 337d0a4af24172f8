"""Sends a heartbeat every half minute, polls for requested files, and renews this process's leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rolloutdeck.client import lease
from rolloutdeck.client.sender import Sender
from rolloutdeck.lib import RunClient, ServerUnreachableError, logger
from rolloutdeck.protocol import HEARTBEAT_SECONDS, SpoolHeader


class Heartbeat:
    """One thread. A lost heartbeat is not repeated: the next one has the full state."""

    def __init__(self, sender: Sender, header: SpoolHeader, get_step: Callable[[], int | None]) -> None:
        self.sender, self.header, self.get_step = sender, header, get_step
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread if there is none. Raises RuntimeError if the interpreter is about to end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rolloutdeck-heartbeat", daemon=True)
            self._thread.start()

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
