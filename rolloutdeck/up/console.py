"""Prints the state of the programs to the terminal, and the end of a log if a program fails."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

from rolloutdeck.protocol import SERVER_HEADER
from rolloutdeck.up.errors import StartFailedError
from rolloutdeck.up.supervisor import ProgramState, Supervisor, describe_log_tail

READY_SECONDS = 120
RETRY_SECONDS = 15


class ConsoleSession:
    """Watches the programs while `up` runs, prints changes, and restarts failed programs."""

    def __init__(self, supervisor: Supervisor, url: str) -> None:
        self.supervisor = supervisor
        self.url = url
        self.last_states: dict[str, ProgramState] = {}
        self.retry_at: dict[str, float] = {}

    def wait_for_web(self, stop: threading.Event) -> None:
        """Returns when the web process answers or a stop is requested. Raises StartFailedError if a program fails."""
        deadline = time.monotonic() + READY_SECONDS
        while not stop.wait(0.1) and not is_web_ready(self.url):
            if not self.supervisor.alive:
                raise self.build_error("The supervisor", "supervisor.err")
            for name, state in self.supervisor.get_states().items():
                if state.name == "FATAL":
                    raise self.build_error(name.capitalize(), f"{name}.log")
            if time.monotonic() > deadline:
                raise self.build_error("The web process", "web.log")

    def build_error(self, program: str, log: str) -> StartFailedError:
        return StartFailedError(f"{program} does not start. {describe_log_tail(self.supervisor.paths.logs / log)}")

    def follow(self, stop: threading.Event) -> None:
        """Checks the programs once a second until a stop is requested."""
        while not stop.wait(1.0):
            if not self.supervisor.alive:
                self.restart_supervisor()
            for name, state in self.supervisor.get_states().items():
                self.report_change(name, state, self.last_states.get(name))

    def restart_supervisor(self) -> None:
        print_line("The supervisor ended unexpectedly, with all programs. Restarting.")
        self.last_states.clear()
        try:
            self.supervisor.start()
        except OSError as error:  # a full disk: `follow` tries again
            print_line(f"The supervisor cannot be started: {error.strerror}.")
            return
        for program in self.supervisor.programs:
            if program.after_web and not program.runs_once:
                self.retry_at[program.name] = time.monotonic()

    def report_change(self, name: str, state: ProgramState, previous: ProgramState | None) -> None:
        """Prints what changed for a program, and restarts a program that the supervisor does not restart."""
        log = self.supervisor.paths.logs / f"{name}.log"
        is_new = previous is None or previous.name != state.name
        if state.name == "FATAL" and is_new:
            print_line(f"{name} fails repeatedly; trying again every {RETRY_SECONDS} s. {describe_log_tail(log)}")
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS
        elif state.name == "EXITED" and is_new:
            print_line(f"{name} failed. {describe_log_tail(log)}" if state.exit_status else f"{name} has finished.")
        elif state.name == "RUNNING" and previous is not None and previous.pid not in (0, state.pid):
            print_line(f"{name} ended unexpectedly and was restarted. See {log}")
        if state.name in ("FATAL", "STOPPED") and time.monotonic() >= self.retry_at.get(name, float("inf")):
            self.retry_at[name] = time.monotonic() + RETRY_SECONDS
            self.supervisor.start_program(name)
        if state.name not in ("STARTING", "BACKOFF"):
            self.last_states[name] = state


def is_web_ready(url: str) -> bool:
    """Returns whether the web process of a Rolloutdeck server answers at `url`."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=2)
    try:
        connection.request("GET", f"{parts.path}/healthz")
        response = connection.getresponse()
        return response.status == 200 and response.headers.get(SERVER_HEADER) is not None
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def print_line(line: str) -> None:
    with suppress(OSError):  # the terminal may be a file on a full disk
        print(line, flush=True)
