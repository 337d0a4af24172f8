"""Starts, controls and stops the supervisor, a separate process with a Unix socket."""

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
from typing import Any

from rolloutdeck.up.paths import ServerPaths, open_log, replace_file
from rolloutdeck.up.processes import ServerProgram, build_supervisor_environment, write_supervisor_config

STOP_SECONDS = 30


@dataclass(frozen=True)
class ProgramState:
    """`name` is a state of supervisord: STARTING RUNNING BACKOFF STOPPING EXITED FATAL UNKNOWN STOPPED."""

    name: str
    pid: int
    exit_status: int


class Supervisor:
    """The supervisor process. `lock`: the handle of the data lock, which the process inherits."""

    def __init__(self, paths: ServerPaths, programs: list[ServerProgram], lock: int, env: dict[str, str]) -> None:
        self.paths, self.programs, self.lock, self.env = paths, programs, lock, env
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the supervisor with all programs that do not need the web process. It ends when this process ends."""
        configuration = write_supervisor_config(self.paths, self.programs)
        argv = [sys.executable, "-m", "rolloutdeck.up.supervisord", "-n", "-c", str(configuration)]
        number, parent = int(signal.SIGTERM), os.getpid()
        program = {"argv": argv, "cwd": str(self.paths.run), "env": {}, "signal": number, "parent": parent}
        programs = configuration.with_name("supervisor.json")
        replace_file(programs, json.dumps({"supervisor": program}))
        variables = build_supervisor_environment(self.paths)
        with open_log(self.paths.logs / "supervisor.err") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-I", variables["UP_CHILD"], str(programs), "supervisor"],
                env={**self.env, **variables},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[self.lock],
                start_new_session=True,  # only `up` gets Ctrl-C, and stops all in order
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def get_states(self) -> dict[str, ProgramState]:
        """Returns the state of each program by name; {} if the supervisor does not answer."""
        infos: list[dict[str, Any]] = self.call("getAllProcessInfo") or []
        return {info["name"]: ProgramState(info["statename"], info["pid"], info["exitstatus"]) for info in infos}

    def start_program(self, name: str) -> None:
        self.call("startProcess", name, False)

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns the result of an XML-RPC call; None if the supervisor does not answer or reports an error."""
        from supervisor.xmlrpc import SupervisorTransport

        transport = SupervisorTransport(None, None, f"unix://{self.paths.sockets / 'up.sock'}")
        try:
            proxy = xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport)
            return getattr(proxy.supervisor, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return None
        finally:
            transport.close()

    def stop(self) -> None:
        """Stops all programs in reverse order and waits. After 30 s, the remaining processes are killed."""
        if self.process is None:
            return
        self.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self.alive and time.monotonic() < deadline:
            self.wake()
            time.sleep(0.05)
        self.kill()

    def wake(self) -> None:
        """Connects to the supervisor, so that it checks now, not once a second, whether a program has ended."""
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(self.paths.sockets / "up.sock"))

    def kill(self) -> None:
        """Kills the supervisor. The programs end with it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def describe_log_tail(log: Path) -> str:
    """Returns the path of a log and its last 12 lines, indented for the terminal."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 8192))
            lines = stream.read().decode(errors="replace").splitlines()[-12:] or ["(the log is empty)"]
    except OSError:
        lines = ["(no log)"]
    return "\n    ".join([f"The end of {log}:", *lines])
