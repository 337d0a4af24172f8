"""The supervisor: started, asked over its unix socket, started again when it dies, stopped in order."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import xmlrpc.client
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rolloutdeck.up.paths import ServerPaths
from rolloutdeck.up.processes import ServerProgram, build_supervisor_environment, write_supervisor_config

STOP_SECONDS = 30


@dataclass(frozen=True)
class ProgramState:
    """`word` is one of the supervisor's: STARTING RUNNING BACKOFF STOPPING EXITED FATAL UNKNOWN STOPPED."""

    word: str
    pid: int
    exit_status: int


class Supervisor:
    def __init__(self, places: ServerPaths, programs: list[ServerProgram], lock: int, env: dict[str, str]) -> None:
        self.places = places
        self.env = env
        self.programs = programs
        self.lock = lock
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it with every program that needs no web process. It holds the lock too, and ends when we end."""
        configuration = write_supervisor_config(self.places, self.programs)
        argv = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(configuration)]
        own = {
            "argv": argv,
            "cwd": str(self.places.run),
            "env": {},
            "signal": int(signal.SIGTERM),
            "parent": os.getpid(),
        }
        programs = configuration.with_name("supervisor.json")
        programs.write_text(json.dumps({"supervisor": own}), encoding="utf-8")
        names = build_supervisor_environment(self.places)
        with (self.places.logs / "supervisor.err").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-I", names["UP_CHILD"], str(programs), "supervisor"],
                env={**self.env, **names},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[self.lock],
                start_new_session=True,  # a Ctrl-C of the terminal reaches `up` alone, which stops all in order
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def states(self) -> dict[str, ProgramState]:
        """The state of every program by name; empty while the supervisor does not answer."""
        found = cast("list[dict[str, Any]] | None", self.ask("getAllProcessInfo"))
        return {
            info["name"]: ProgramState(word=info["statename"], pid=info["pid"], exit_status=info["exitstatus"])
            for info in found or []
        }

    def start_program(self, name: str) -> None:
        self.ask("startProcess", name, False)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call the supervisor's XML-RPC; None when it is gone, or when it says no (already started, say)."""
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{self.places.sockets / 'up.sock'}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return None
        finally:
            transport.close()

    def stop(self) -> None:
        """Stop all, last started first, and wait; what does not end in time is killed."""
        if self.process is None:
            return
        self.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self.alive and time.monotonic() < deadline:
            self.knock()
            time.sleep(0.05)
        self.kill()

    def knock(self) -> None:
        """It looks once a second whether a program has ended, and whenever somebody comes."""
        with suppress(OSError), socket.socket(socket.AF_UNIX) as door:
            door.settimeout(1)
            door.connect(str(self.places.sockets / "up.sock"))

    def kill(self) -> None:
        """The programs end with it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def read_log_tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, indented for the terminal."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 8192))
            text = stream.read().decode(errors="replace")
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:]) or "    (the log is empty)"
