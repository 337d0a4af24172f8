"""The worker of another machine helps with a long search: a real server, and one more worker with another name."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.browser.support.training import Training
from tests.support.server import Product

STEPS = 120

pytestmark = pytest.mark.slow


def start_worker(server: Product, name: str, log: Path) -> subprocess.Popen[bytes]:
    command = [server.python, "-m", "celery", "--skip-checks", "-A", "workers", "worker", "--concurrency", "1"]
    environ = {**server.environ, "ROLLOUTDECK_DATA": str(server.data)}
    with log.open("wb") as file:
        return subprocess.Popen(
            [*command, "--hostname", name, "--loglevel", "info"], env=environ, stdout=file, stderr=file
        )


def count_helped_files(log: Path) -> int:
    return sum(map(int, re.findall(r"Scanned (\d+) files of the search", log.read_text(errors="replace"))))


def test_the_worker_of_another_machine_scans_a_part_of_the_files(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with Product(variables={"ROLLOUTDECK_SHARE_SEARCH_SECONDS": "0"}) as server:
        worker = start_worker(server, "celery@elsewhere", log)
        try:
            training = Training(server, "searched")
            deadline, tries, steps = time.monotonic() + 600, 0, 0
            found = complete = 0  # samples, one for each step, and searches that found all of them
            while not count_helped_files(log) or found != steps:
                assert time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
                complete += found == steps
                if found == steps and complete % 5 == 1:  # compaction joins their files, and a few are not shared
                    training.push_many(range(steps, steps + STEPS), 1)
                    steps += STEPS
                tries += 1  # another search, which no cache has
                answer = server.get(f"samples/?run={training.uid}&split=train&q=says+-word{tries}")
                found = answer["count"]
        finally:
            worker.kill()
            worker.wait()
