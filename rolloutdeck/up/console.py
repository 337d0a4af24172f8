"""What `up` tells the person at the terminal: short lines, and the end of a log when something fails."""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

from rolloutdeck.protocol import SERVER_HEADER
from rolloutdeck.up.errors import StartFailedError
from rolloutdeck.up.supervisor import ProgramState, Supervisor, read_log_tail

READY_SECONDS = 120
RETRY_SECONDS = 15


class ConsoleSession:
    def __init__(self, supervisor: Supervisor, url: str) -> None:
        self.supervisor = supervisor
        self.url = url
        self.seen: dict[str, ProgramState] = {}
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

    def broken(self, what: str, log: str) -> StartFailedError:
        path = self.supervisor.places.logs / log
        return StartFailedError(f"{what} does not start; the end of {path}:\n{read_log_tail(path)}")

    def follow(self, stop: threading.Event) -> None:
        """Look once a second until a stop is asked for."""
        while not stop.wait(1.0):
            if not self.supervisor.alive:
                self.start_again()
            for name, state in self.supervisor.states().items():
                self.note(name, state, self.seen.get(name))

    def start_again(self) -> None:
        print_line("The supervisor ended unexpectedly, and everything with it; starting again.")
        self.seen.clear()
        self.supervisor.start()
        for program in self.supervisor.programs:
            if program.after_web and not program.once:
                self.retry_at[program.name] = time.monotonic()

    def note(self, name: str, state: ProgramState, before: ProgramState | None) -> None:
        """Say what changed for one program, and start again one that the supervisor gave up or holds back."""
        log = self.supervisor.places.logs / f"{name}.log"
        if state.word == "FATAL" and (before is None or before.word != "FATAL"):
            print_line(
                f"{name} does not stay up; trying again every {RETRY_SECONDS} s. "
                f"The end of {log}:\n{read_log_tail(log)}"
            )
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS
        elif state.word == "EXITED" and (before is None or before.word != "EXITED"):
            print_line(
                f"{name} has finished."
                if state.exit_status == 0
                else f"{name} failed. The end of {log}:\n{read_log_tail(log)}"
            )
        elif state.word == "RUNNING" and before is not None and before.pid not in (0, state.pid):
            print_line(f"{name} ended unexpectedly and was started again; see {log}")
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


def print_line(line: str) -> None:
    print(line, flush=True)
