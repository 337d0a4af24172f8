"""A server whose processes are started one by one, as systemd or Kubernetes does: Redis, web processes, workers, and
nginx in front of them."""

from __future__ import annotations

import http.client
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
from functools import cached_property
from pathlib import Path
from types import TracebackType

from rolloutdeck.up.paths import create_telemetry_folder
from tests.support import nginx
from tests.support.environment import find_redis_binary
from tests.support.real_servers import forget_real_servers
from tests.support.server import Session, free_port


class Cluster:
    """`with Cluster(web=2, workers=2) as cluster:` runs them, and kills them at the end.

    `storage` is the URL of a place in a bucket; without it the files are in the data folder.
    """

    def __init__(self, *, web: int, workers: int, database_url: str = "", storage: str = "") -> None:
        self.counts = {"redis": 1, "web": web, "worker": workers, "nginx": 1}
        self.database_url, self.storage, self.readiness = database_url, storage, "not asked"
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {kind: [] for kind in self.counts}

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
        self.web_ports = [free_port() for _number in range(self.counts["web"])]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = dict(os.environ)
        forget_real_servers(self.environ)
        self.environ |= {
            "HOME": str(self.folder),
            "REDIS_URL": f"unix://{self.folder}/redis.sock",
            "ROLLOUTDECK_DATA": str(self.data),
            "ROLLOUTDECK_PUBLIC_URL": self.url,
        }
        if self.database_url:
            self.environ["DATABASE_URL"] = self.database_url
        if self.storage:
            self.environ["ROLLOUTDECK_STORAGE"] = self.storage
        self.nginx_command = nginx.write_balancer(self.folder / "nginx", self.port, self.web_ports)
        self.log = (self.folder / "log").open("ab")
        self.start("redis")
        command = [*self.build_command("migrate"), "--link"]
        pipe = subprocess.PIPE  # two at once, as two init containers
        both = [subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=self.log, text=True) for _ in range(2)]
        outputs = [process.communicate(timeout=600)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0], (self.folder / "log").read_text()
        self.link = outputs[-1].split()[-1]
        for kind in ("web", "worker", "nginx"):
            for number in range(self.counts[kind]):
                self.start(kind, number)
        self.wait_until_ready()
        self.token = self.create_token()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in [process for processes in self.processes.values() for process in processes]:
            process.terminate() if process in self.processes["nginx"] else process.kill()  # or its workers stay
            process.wait()
        self.log.close()
        if error is not None:
            sys.stderr.write((self.folder / "log").read_text(errors="replace")[-4000:])
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(create_telemetry_folder(self.data), ignore_errors=True)

    def build_command(self, kind: str, number: int = 0) -> list[str]:
        if kind == "redis":
            socket = ["--unixsocket", f"{self.folder}/redis.sock", "--dir", str(self.folder)]
            return [find_redis_binary(), "--port", "0", "--save", "", *socket]
        if kind == "nginx":
            return self.nginx_command
        options = {"web": ["--port", str(self.web_ports[number])], "worker": ["--processes", "1"]}
        return [sys.executable, "-m", "rolloutdeck", kind, *options.get(kind, [])]

    def start(self, kind: str, number: int = 0) -> None:
        command = self.build_command(kind, number)
        process = subprocess.Popen(command, env=self.environ, stdout=self.log, stderr=subprocess.STDOUT)
        self.processes[kind].insert(number, process)

    def stop(self, kind: str, number: int = 0) -> None:
        """Ends a process with SIGKILL. Of nginx it is one of the two that pass requests; another one replaces it."""
        if kind == "nginx":
            os.kill(self.list_children(self.processes[kind][0].pid)[number], signal.SIGKILL)
            return
        process = self.processes[kind].pop(number)
        process.kill()
        process.wait()

    def kill(self, kind: str, number: int = 0) -> None:
        """Kills a process and starts another one."""
        self.stop(kind, number)
        if kind != "nginx":
            self.start(kind, number)

    def list_children(self, pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def restart_ended(self) -> None:
        """Starts processes that have ended by themselves, as systemd and Kubernetes do: a worker does so if Redis or
        the database is away while it starts."""
        for kind, own in self.processes.items():
            for number, process in enumerate(list(own)):
                if process.poll() is not None:
                    self.log.write(f"{kind} has ended with status {process.returncode}\n".encode())
                    self.log.flush()
                    own.pop(number)
                    self.start(kind, number)

    def wait_until_ready(self) -> None:
        """Waits until all web processes listen, and a worker has reported."""
        deadline = time.monotonic() + 300
        while not (self.all_listen() and self.is_ready()):
            if time.monotonic() > deadline:
                log = (self.folder / "log").read_text(errors="replace")[-4000:]
                raise RuntimeError(
                    f"the cluster is not ready: all listen: {self.all_listen()}, {self.readiness}\n{log}"
                )
            self.restart_ended()
            time.sleep(0.2)

    def all_listen(self) -> bool:
        """Whether nginx and all web processes listen, from proc_net(5): state 0A is LISTEN."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        listening = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
        return listening.issuperset([self.port, *self.web_ports])

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

    @cached_property
    def session(self) -> Session:
        """Of the admin, who uses the link once."""
        session = Session(self.url)
        path = self.link.removeprefix(self.url)
        session.submit(path.partition("?")[0], path)
        return session

    def request(self, method: str, path: str, body: bytes = b"", seconds: float = 60) -> tuple[int, bytes]:
        """Sends a request on a new connection; nginx chooses the web process. Returns status and body. Raises
        OSError and HTTPException."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/api/v1/{path}", body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
