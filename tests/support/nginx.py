"""A real nginx, unprivileged, with the configuration that docs/deployment.md describes."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path("/usr/sbin/nginx")
DEPLOY = Path(__file__).parents[2] / "docs" / "deployment.md"
DOCUMENTED_SERVER = "http://127.0.0.1:8460"
DOCUMENTED_GROUP = "http://rolloutdeck"  # of web processes on several machines

HEAD = """\
worker_processes {workers};
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
"""


def read_documented_blocks() -> dict[str, str]:
    """The blocks of the documentation by their first word: `location`, `map`, `upstream`."""
    blocks = re.findall(r"```nginx\n(.*?)```", DEPLOY.read_text(), re.DOTALL)
    return {block.split()[0]: block for block in blocks}


def write_configuration(folder: Path, parts: Sequence[str], workers: int = 1) -> list[str]:
    """Writes the parts of `http` to a new folder. Returns the command."""
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(HEAD.format(folder=folder, workers=workers) + "\n".join(parts) + "}\n")
    return [str(PROGRAM), "-c", str(file), "-e", str(folder / "error.log")]


def write_balancer(folder: Path, port: int, web_ports: Sequence[int]) -> list[str]:
    """A configuration that passes all requests on `port` to several web processes. Returns the command."""
    blocks = read_documented_blocks()
    group = re.sub(r"( +)server \S+( [^;]*)?;\n", "", blocks["upstream"])
    options = re.findall(r"server \S+( [^;]*)?;", blocks["upstream"])[0]
    servers = "".join(f"server 127.0.0.1:{web_port}{options};\n" for web_port in web_ports)
    location = blocks["location"].replace("/a/b/", "/").replace(DOCUMENTED_SERVER, DOCUMENTED_GROUP)
    server = f"server {{ listen 127.0.0.1:{port};\n{location} }}"
    return write_configuration(folder, [blocks["map"], group.replace("{\n", "{\n" + servers), server], workers=2)


@contextmanager
def run_proxy(folder: Path, server: str, port: int, stripping_port: int) -> Iterator[None]:
    """Passes /a/b/ on `port` as documented; on `stripping_port` it removes the prefix, as other proxies do."""
    blocks = read_documented_blocks()
    location = blocks["location"].replace(DOCUMENTED_SERVER, server)
    stripping = location.replace(f"proxy_pass {server};", f"proxy_pass {server}/;").replace("$host;", "$http_host;")
    servers = [
        f"server {{ listen 127.0.0.1:{listened};\n{position} }}"
        for position, listened in ((location, port), (stripping, stripping_port))
    ]
    process = subprocess.Popen(write_configuration(folder, [blocks["map"], *servers]))
    try:
        wait_for_answer(f"http://127.0.0.1:{port}/a/b/healthz")
        yield
    finally:
        process.terminate()
        process.wait(20)


def wait_for_answer(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)
