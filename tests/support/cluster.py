"""A server whose processes are started one by one, as systemd or Kubernetes does: Redis, web processes and workers."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from rolloutdeck.up.paths import create_telemetry_folder
from tests.support.environment import redis_binary
from tests.support.server import Session, free_port


class Cluster:
    """`with Cluster(web=2, workers=2) as cluster:` runs them, and kills them at the end."""

    def __init__(self, *, web: int, workers: int, database_url: str = "") -> None:
        self.counts, self.database_url, self.readiness = {"web": web, "worker": workers}, database_url, "not asked"
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {"redis": [], "web": [], "worker": []}

    def __enter__(self) -> Cluster:
        try:
            self.start_all()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def start_all(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rd-cluster-"))
        self.data, self.port = self.folder / "data", free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ROLLOUTDECK_")}
        self.environ = {
            **clean,
            "HOME": str(self.folder),
            "REDIS_URL": f"unix://{self.folder}/redis.sock",
            "ROLLOUTDECK_DATA": str(self.data),
            "ROLLOUTDECK_PUBLIC_URL": self.url,
        }
        if self.database_url:
            self.environ["DATABASE_URL"] = self.database_url
        self.log = (self.folder / "log").open("ab")
        self.start("redis")
        command = [*self.build_command("migrate"), "--link"]
        pipe = subprocess.PIPE  # two at once, as two init containers
        both = [subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=self.log, text=True) for _ in range(2)]
        outputs = [process.communicate(timeout=120)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], (self.folder / "log").read_text()
        self.link = outputs[-1].split()[-1]
        for kind, count in self.counts.items():
            for _number in range(count):
                self.start(kind)
        self.wait_until_ready()
        self.token = self.create_token()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in [process for processes in self.processes.values() for process in processes]:
            process.kill()
            process.wait()
        self.log.close()
        if error is not None:
            sys.stderr.write((self.folder / "log").read_text(errors="replace")[-4000:])
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(create_telemetry_folder(self.data), ignore_errors=True)

    def build_command(self, kind: str) -> list[str]:
        if kind == "redis":
            socket = ["--unixsocket", f"{self.folder}/redis.sock", "--dir", str(self.folder)]
            return [redis_binary(), "--port", "0", "--save", "", *socket]
        options = {"web": ["--port", str(self.port)], "worker": ["--processes", "1"]}
        return [sys.executable, "-m", "rolloutdeck", kind, *options.get(kind, [])]

    def start(self, kind: str) -> None:
        command = self.build_command(kind)
        process = subprocess.Popen(command, env=self.environ, stdout=self.log, stderr=subprocess.STDOUT)
        self.processes[kind].append(process)

    def kill(self, kind: str, number: int = 0) -> None:
        """Kills a process and starts another one."""
        process = self.processes[kind].pop(number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.start(kind)

    def wait_until_ready(self) -> None:
        """Waits until all web processes listen, and a worker has reported."""
        deadline = time.monotonic() + 120
        while self.count_listeners() < self.counts["web"] or not self.is_ready():
            ended = [kind for kind, own in self.processes.items() for process in own if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                state = f"ended: {ended}, listening: {self.count_listeners()}, {self.readiness}"
                raise RuntimeError(f"the cluster is not ready: {state}")
            time.sleep(0.2)

    def count_listeners(self) -> int:
        """Processes that listen on the port, from proc_net(5): state 0A is LISTEN."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=10) as answer:
                self.readiness = "ready"
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            self.readiness = error.read().decode()
        except OSError as error:
            self.readiness = str(error)
        return False

    def create_token(self) -> str:
        """A token of the admin who signs in with the link."""
        code = (
            "from django.contrib.auth.models import User; from rollouts.models import Token; "
            "print('TOKEN', Token.issue(user=User.objects.get(), name='test', scopes=['read', 'ingest', 'admin'])[1])"
        )
        command = [sys.executable, str(Path(__file__).parents[2] / "manage.py"), "shell", "-c", code]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=True)
        found = re.search(r"TOKEN (\S+)", done.stdout)
        assert found, done.stdout
        return found[1]

    def open_session(self) -> Session:
        session = Session(self.url)
        path = self.link.removeprefix(self.url)
        session.submit(path.partition("?")[0], path)
        return session

    def request(self, method: str, path: str, body: bytes = b"", seconds: float = 60) -> tuple[int, Any]:
        """Sends a request on a new connection, which any web process may get. Returns status and JSON. Raises OSError
        and HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/v1/{path}", body or None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        finally:
            connection.close()
