"""A real `rolloutdeck up` on a throw-away data directory, for tests of the whole product and for `make bench`."""

from __future__ import annotations

import html
import http.cookiejar
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rolloutdeck.up.paths import create_data_folders, create_telemetry_folder
from rolloutdeck.up.supervisor import Supervisor
from tests.support.real_servers import forget_real_servers

HIDDEN = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')
MAX_START_SECONDS = 300  # eight servers may start at once, next to other work


def free_port() -> int:
    """A port below those that the kernel gives to connections: one of them may take a higher one before the server
    listens, which is seconds later (ip(7), ip_local_port_range)."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = secrets.choice(range(10_000, max(first, 20_000)))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Product:
    """`with Product() as product:` runs the whole product; its HOME and data are deleted at the end of the block.

    `public_url` is the URL that users open if a proxy is in front of the server; `url` always reaches the server.
    `archive` is a packed data folder to start with, `python` the interpreter that runs the server, `web` and `workers`
    are numbers of processes, None as the product chooses, `variables` are for its environment.
    """

    def __init__(
        self,
        public_url: str = "",
        *,
        archive: Path | None = None,
        python: str = sys.executable,
        web: int = 1,
        workers: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.public_url, self.archive, self.python = public_url, archive, python
        self.web, self.workers, self.variables = web, workers, variables or {}

    def __enter__(self) -> Product:
        self.home = Path(tempfile.mkdtemp(prefix="rd-up-"))
        self.data = self.home / "data"
        if self.archive:
            with tarfile.open(self.archive) as archive:
                archive.extractall(self.data, filter="data")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = dict(os.environ)
        forget_real_servers(self.environ)
        self.environ |= {"HOME": str(self.home), **self.variables}
        if self.public_url:
            self.environ["ROLLOUTDECK_PUBLIC_URL"] = self.public_url
        self.log = (self.home / "up.log").open("wb")
        self.up()
        return self

    def up(self) -> None:
        """Starts all processes; after `down`, with the same data and address."""
        command = [self.python, "-m", "rolloutdeck", "up", "--data", str(self.data), "--port", str(self.port)]
        command += ["--web", str(self.web)]
        command += [] if self.workers is None else ["--workers", str(self.workers)]
        self.process = subprocess.Popen(command, env=self.environ, stdout=self.log, stderr=subprocess.STDOUT)
        self.token = self.wait_for_token()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill_all()
        self.log.close()
        if error is not None:
            sys.stderr.write((self.home / "up.log").read_text(errors="replace")[-3000:])
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(create_telemetry_folder(self.data), ignore_errors=True)

    def down(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def kill_all(self) -> None:
        """Kills all processes, since a normal shutdown takes seconds. tests/test_up.py tests a normal shutdown."""
        result = self.pids()
        for pid in result:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in result) and time.monotonic() < deadline:
            time.sleep(0.02)

    def wait_for_token(self) -> str:
        local = self.home / ".rolloutdeck" / "local.json"
        deadline = time.monotonic() + MAX_START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise SystemExit("rolloutdeck up ended:\n" + (self.home / "up.log").read_text(errors="replace"))
            try:
                with urllib.request.urlopen(f"{self.url}/healthz", timeout=2):
                    return str(json.loads(local.read_text())["token"])
            except (OSError, ValueError, KeyError):
                time.sleep(0.1)
        raise SystemExit(f"rolloutdeck up did not answer within {MAX_START_SECONDS} seconds")

    def sign_in_link(self) -> str:
        """The link of the first start, which signs its admin in once."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for word in (self.home / "up.log").read_text(errors="replace").split():
                if "/sign-in/link/?t=" in word:
                    return word
            time.sleep(0.05)
        raise SystemExit("rolloutdeck up printed no sign-in link")

    def open_session(self) -> Session:
        """A session of the person who uses the sign-in link."""
        session = Session(self.url)
        link = self.sign_in_link()
        session.submit(link.partition("?")[0].removeprefix(self.url), link.removeprefix(self.url))
        return session

    def sign_in(self, page: Any) -> None:
        """Signs the admin of the first start in."""
        use_sign_in_link(page, self.sign_in_link())

    def stop(self, part: str) -> None:
        """Stops `redis`, `worker` or `web`, and keeps it stopped until `start`."""
        self.ask_supervisor("stopProcess", part)

    def start(self, part: str) -> None:
        self.ask_supervisor("startProcess", part)

    def ask_supervisor(self, method: str, part: str) -> None:
        supervisor = Supervisor(create_data_folders(self.data), [], -1, {})
        assert supervisor.call(method, part) is True, f"the supervisor did not do {method} {part}"

    def get(self, path: str) -> Any:
        """The JSON answer of the API to GET `path` (below /api/v1/)."""
        return json.loads(self.fetch(f"/api/v1/{path}"))

    def post(self, path: str, data: Any, method: str = "POST", *, seconds: float = 120, **headers: str) -> Any:
        """The JSON answer of the API to POST `data` to `path` (below /api/v1/), None if the answer is empty. Waits at
        most `seconds`."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json", **headers}
        body = json.dumps(data).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.loads(answer.read() or b"null")

    def fetch(self, path: str) -> bytes:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return bytes(answer.read())

    def pids(self) -> list[int]:
        """Returns the processes of this server, with the children of the supervisor."""
        listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        parents = {int(pid): int(parent) for pid, parent in (line.split() for line in listing.splitlines())}
        matches = [self.process.pid]
        for pid in matches:
            matches += [child for child, parent in parents.items() if parent == pid]
        return matches

    def kill(self, part: str) -> bool:
        """Sends SIGKILL to one process whose command line contains `part`. Returns False if there is none."""
        for pid in self.pids()[1:]:
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if part in command and "supervisord" not in command:
                    os.kill(pid, signal.SIGKILL)
                    return True
            except (OSError, ProcessLookupError):
                continue
        return False

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts another `rolloutdeck` command on this machine, with the local token."""
        return subprocess.Popen(
            [self.python, "-m", "rolloutdeck", *words], env=self.environ, stdout=self.log, stderr=self.log
        )

    def memory(self) -> float:
        """Sum of the proportional set sizes of all processes, in MB. It rises when another program that shares a
        library ends."""
        return self.sum_memory("Pss:")

    def anonymous_memory(self) -> float:
        """Memory of all processes that no file backs, in MB. What several of them share counts once: it does not rise
        when one of them copies a page that only it still needs, nor when another program ends."""
        return self.sum_memory("Pss_Anon:", "SwapPss:")

    def sum_memory(self, *kinds: str) -> float:
        total = 0
        for pid in self.pids():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith(kinds))
        return total / 1024

    def count_cpu_seconds(self) -> float:
        """CPU time of all processes. The database is counted only if it is SQLite."""
        ticks = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def disk(self) -> int:
        """Returns the bytes below the data directory, without logs."""
        return sum(file.stat().st_size for file in self.data.rglob("*") if file.is_file() and "logs" not in file.parts)


class Session:
    """Sends requests like a browser without scripts: cookies, pages and forms."""

    def __init__(self, url: str) -> None:
        self.url, self.cookies = url, http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))

    def get(self, path: str) -> str:
        """The HTML of a page. Raises HTTPError."""
        with self.opener.open(self.url + path, timeout=60) as answer:
            return str(answer.read().decode())

    def submit(self, path: str, page: str, **fields: str) -> str:
        """Posts a form with `fields` and the hidden fields of `page`. Returns the HTML of the answer."""
        hidden = {name: html.unescape(value) for name, value in HIDDEN.findall(self.get(page).partition("<main")[2])}
        body = urllib.parse.urlencode(hidden | fields).encode()
        with self.opener.open(self.url + path, body, timeout=60) as answer:
            return str(answer.read().decode())

    def cookie_header(self) -> str:
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in self.cookies)

    def list_cookies(self) -> list[Any]:
        """The cookies as Playwright takes them."""
        return [{"name": cookie.name, "value": cookie.value, "url": self.url} for cookie in self.cookies]


def use_sign_in_link(page: Any, link: str) -> None:
    """Opens a sign-in link in a browser and presses the one button of its page."""
    page.goto(link)
    page.locator("main button").click()
    page.wait_for_url(lambda url: "/sign-in/" not in url)
