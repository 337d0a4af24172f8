"""What `up` tells the person at the terminal: short lines, and the end of a log when something fails."""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

from rolloutdeck.protocol.wire import SERVER_HEADER
from rolloutdeck.up.errors import Broken
from rolloutdeck.up.supervisor import State, Supervisor, tail

READY_SECONDS = 120
RETRY_SECONDS = 15


class Session:
    def __init__(self, supervisor: Supervisor, url: str) -> None:
        self.supervisor = supervisor
        self.url = url
        self.seen: dict[str, State] = {}
        self.retry_at: dict[str, float] = {}

    def wait_for_web(self, stop: threading.Event) -> None:
        """Return when the web process answers or a stop is asked for. Broken when a part gives up."""
        deadline = time.monotonic() + READY_SECONDS
        while not stop.wait(0.1) and not answers(self.url):
            if not self.supervisor.alive:
                raise self.broken("The supervisor", "supervisor.err")
            for name, state in self.supervisor.states().items():
                if state.word == "FATAL":
                    raise self.broken(name.capitalize(), f"{name}.log")
            if time.monotonic() > deadline:
                raise self.broken("The web process", "web.log")

    def broken(self, what: str, log: str) -> Broken:
        path = self.supervisor.places.logs / log
        return Broken(f"{what} does not start; the end of {path}:\n{tail(path)}")

    def follow(self, stop: threading.Event) -> None:
        """Look once a second until a stop is asked for."""
        while not stop.wait(1.0):
            if not self.supervisor.alive:
                self.start_again()
            for name, state in self.supervisor.states().items():
                self.note(name, state, self.seen.get(name))

    def start_again(self) -> None:
        say("The supervisor ended unexpectedly, and everything with it; starting again.")
        self.seen.clear()
        self.supervisor.start()
        for program in self.supervisor.programs:
            if program.after_web and not program.once:
                self.retry_at[program.name] = time.monotonic()

    def note(self, name: str, state: State, before: State | None) -> None:
        """Say what changed for one program, and start again one that the supervisor gave up or holds back."""
        log = self.supervisor.places.logs / f"{name}.log"
        if state.word == "FATAL" and (before is None or before.word != "FATAL"):
            say(f"{name} does not stay up; trying again every {RETRY_SECONDS} s. The end of {log}:\n{tail(log)}")
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS
        elif state.word == "EXITED" and (before is None or before.word != "EXITED"):
            say(f"{name} has finished." if state.exit_status == 0 else f"{name} failed. The end of {log}:\n{tail(log)}")
        elif state.word == "RUNNING" and before is not None and before.pid not in (0, state.pid):
            say(f"{name} ended unexpectedly and was started again; see {log}")
        if state.word in ("FATAL", "STOPPED") and time.monotonic() >= self.retry_at.get(name, float("inf")):
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS
            self.supervisor.start_program(name)
        if state.word not in ("STARTING", "BACKOFF"):
            self.seen[name] = state


def answers(url: str) -> bool:
    """Whether a Rolloutdeck web process answers at `url` (scheme, host and port count)."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=2)
    try:
        connection.request("GET", f"{address.path}/healthz")
        answer = connection.getresponse()
        return answer.status == 200 and answer.headers.get(SERVER_HEADER) is not None
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def say(line: str) -> None:
    print(line, flush=True)
