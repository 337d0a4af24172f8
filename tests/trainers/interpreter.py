"""Runs scripts with the trainers' Python, each in a process of its own, forked by `fork_server.py`."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

# Ray reads its settings at import. On a busy machine it gives its workers little of the processor.
FIXED_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_worker_niceness": "0",
}


def require_python() -> str:
    """The Python of an environment with trainers; skips the test where there is none."""
    result = os.environ.get("TRAINERS_PYTHON")
    if not result:
        pytest.skip("needs TRAINERS_PYTHON, the Python of an environment with verl (make test-trainers)")
    return result


def build_clean_environment() -> dict[str, str]:
    """The environment of this process, without variables that configure Rolloutdeck, verl or Ray."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ROLLOUTDECK_", "VERL_", "RAY_", "PYTHONPATH"))
    }


def run_script(
    script: Path, words: Sequence[object], *, cwd: Path, env: Mapping[str, str], timeout: float = 250
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run of `python script words`. Variables that set up Python itself have no effect."""
    return _start_server(require_python()).run([str(script), *map(str, words)], cwd, env, timeout)


@cache
def _start_server(interpreter: str) -> ForkServer:
    return ForkServer(interpreter)


class ForkServer:
    def __init__(self, interpreter: str) -> None:
        self.home = tempfile.TemporaryDirectory(prefix="rd-fork-")
        self.connection, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [interpreter, str(Path(__file__).with_name("fork_server.py")), str(other.fileno())]
        env = {**build_clean_environment(), **FIXED_VARIABLES, "HOME": self.home.name}
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=env, cwd=self.home.name, pass_fds=[other.fileno()]
        )
        other.close()
        atexit.register(self.stop)

    def run(
        self, argv: list[str], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        request = {"argv": argv, "cwd": str(cwd), "env": dict(env)}
        pipes = [os.pipe(), os.pipe()]
        socket.send_fds(self.connection, [json.dumps(request).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        with ThreadPoolExecutor(len(pipes)) as pool:
            outputs = [pool.submit(_read_all, read) for read, _ in pipes]
            pid = self._receive_number(300)  # for the first script, after the imports
            try:
                status = self._receive_number(timeout)
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                self._receive_number(60)
                raise subprocess.TimeoutExpired(argv, timeout) from None
            stdout, stderr = (output.result(60) for output in outputs)
        return subprocess.CompletedProcess(argv, status, stdout, stderr)

    def _receive_number(self, timeout: float) -> int:
        """Raises TimeoutError."""
        self.connection.settimeout(timeout)
        answer = self.connection.recv(100)
        assert answer, f"the fork server ended with status {self.process.wait()}"
        return int(answer)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.home.cleanup()


def _read_all(handle: int) -> str:
    with open(handle, encoding="utf-8", errors="replace") as file:
        return file.read()
