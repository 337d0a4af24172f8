"""A real nginx, unprivileged, with the configuration that docs/deployment.md tells people to write."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEPLOY = Path(__file__).parents[3] / "docs" / "deployment.md"

HEAD = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
"""


def documented(server: str) -> tuple[str, str]:
    """(what stands in `http`, the location) of the documentation, for the server at `server`."""
    blocks = re.findall(r"```nginx\n(.*?)```", DEPLOY.read_text(), re.DOTALL)
    location = next(block for block in blocks if block.startswith("location"))
    once = next(block for block in blocks if block.startswith("map"))
    return once, location.replace("http://127.0.0.1:8460", server)


@contextmanager
def proxy(folder: Path, server: str, port: int, stripping_port: int) -> Iterator[None]:
    """Passes /a/b/ on `port` as documented; on `stripping_port` it takes the prefix off, the other way people do it."""
    folder.mkdir()
    once, location = documented(server)
    stripping = location.replace(f"proxy_pass {server};", f"proxy_pass {server}/;").replace("$host;", "$http_host;")
    config = HEAD.format(folder=folder) + once
    for position, listened in ((location, port), (stripping, stripping_port)):
        config += f"server {{ listen 127.0.0.1:{listened};\n{position} }}\n"
    file = folder / "nginx.conf"
    file.write_text(config + "}\n")
    process = subprocess.Popen(["/usr/sbin/nginx", "-c", str(file), "-e", str(folder / "error.log")])
    try:
        wait(f"http://127.0.0.1:{port}/a/b/healthz")
        yield
    finally:
        process.terminate()
        process.wait(20)


def wait(url: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.05)
