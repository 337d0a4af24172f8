"""Short programs of trainers, which tests run as processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from rolloutdeck.client import spool
from rolloutdeck.client.run import Run
from rolloutdeck.protocol import wire
from tests.rolloutdeck.support.fake_server import wait_until

Start = Callable[..., Run]
ROOT = Path(__file__).parents[3]
HEADER: wire.SpoolHeader = {
    "kind": "dump",
    "project": "math",
    "uid": "run-1",
    "name": "grpo",
    "attempt": "a",
    "run": {},
}
ENDLESS_PROGRAM = """
import rolloutdeck, time
run = rolloutdeck.init(project="math", name="killed", queue_bytes=8 << 20)
step = 0
while True:
    step += 1
    run.log_samples([{"response": str(n) * 500, "last": n == 99} for n in range(100)], step=step)
    time.sleep(0.01)
"""


def start_program(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, text=True, stdout=subprocess.PIPE)


def create_abandoned_spool(spool_root: Path, *, after: int = 3) -> Path:
    """Kills a trainer while it writes. Returns its spool folder."""
    running = start_program(ENDLESS_PROGRAM)
    try:
        wait_until(
            lambda: any(len(spool.list_spool_files(folder)) > after for folder in spool.find_spool_folders(spool_root))
        )
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    [folder] = spool.find_spool_folders(spool_root)
    return folder


def is_complete(body: bytes) -> bool:
    lines = body.split(b"\n")
    return len(lines) == 101 and json.loads(lines[-2])["last"] is True
