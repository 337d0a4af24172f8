"""Runs a server, a training, a watched folder, a person and readers without faults, and watches memory and open files.

    python -m tests.chaos.soak --minutes 60

Exit status 1: the last third of the time has more memory than the first by 10 % and 20 MB, or more open files.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checks import check_everything
from tests.chaos.trainer import NAME, PROJECT
from tests.chaos.world import World
from tests.support.server import Session

MEASURE_SECONDS = 10.0
READERS = 3
# Pages of a longer run and of a longer plan need more memory. In an hour this is a run of 1,800 steps, more than
# trainings of language models do in an hour, and a plan as long as people make them.
STEP_SECONDS, MAX_PINS = 2.0, 50
MAX_GROWTH, MAX_GROWTH_MB = 1.10, 20.0
MAX_NEW_FILES = 20  # open files of all processes; connections of readers come and go


@dataclass
class Usage:
    """Anonymous memory of all processes in MB, and open files; one value per measurement."""

    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def find_growth(self) -> list[str]:
        """Compares the median of the last third with that of the first. Returns one sentence per growth."""
        third = max(1, len(self.memory) // 3)
        first, last = (statistics.median(values) for values in (self.memory[:third], self.memory[-third:]))
        few, many = (statistics.median(values) for values in (self.files[:third], self.files[-third:]))
        problems = []
        if last > first * MAX_GROWTH + MAX_GROWTH_MB:
            problems.append(f"memory grew from {first:.0f} MB to {last:.0f} MB")
        if many > few + MAX_NEW_FILES:
            problems.append(f"open files grew from {few:.0f} to {many:.0f}")
        return problems


def count_open_files(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return total


def read_pages(world: World, session: Session, number: int, is_over: threading.Event, errors: list[str]) -> None:
    """Opens pages of the run as a person does, one each second."""
    chance = random.Random(number)
    runs = {run["name"]: run["id"] for run in world.get(f"runs/?project={PROJECT}")["results"]}
    uid = runs[NAME]
    while not is_over.wait(chance.uniform(0.5, 1.5)):
        query = chance.choice(("", "?q=%22Sample%22", "?q=score%3A1", "?sort=-len"))
        paths = ("/", f"/runs/{uid}/", f"/runs/{uid}/charts.json", f"/runs/{uid}/steps/1/{query}", "/pins/", "/review/")
        path = chance.choice(paths)
        try:
            session.get(path)
        except OSError as error:
            errors.append(f"{path}: {error}")


def run_soak(minutes: float, seed: int) -> list[str]:
    """Returns what is wrong: growth, and pages that failed. Raises AssertionError if samples are lost."""
    usage, errors, is_over = Usage(), [], threading.Event()
    with World(random.Random(seed), has_small_disk=False, max_pins=MAX_PINS, step_seconds=STEP_SECONDS) as world:
        world.wait_for_start()
        session = world.product.open_session()
        threads = [
            threading.Thread(target=read_pages, args=(world, session, number, is_over, errors), daemon=True)
            for number in range(READERS)
        ]
        for thread in threads:
            thread.start()
        started = time.monotonic()
        while (passed := time.monotonic() - started) < minutes * 60:
            world.write_dump()
            time.sleep(MEASURE_SECONDS)
            usage.memory.append(world.product.anonymous_memory())
            usage.files.append(count_open_files(world.product.pids()))
            print(f"{passed:6.0f} s  {usage.memory[-1]:6.0f} MB  {usage.files[-1]:5} open files", flush=True)
        is_over.set()
        for thread in threads:
            thread.join()
        world.finish()
        print(check_everything(world, session))
    return usage.find_growth() + [f"{len(errors)} pages failed, as {error}" for error in errors[:1]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    problems = run_soak(args.minutes, args.seed)
    print("\n".join(problems) or "Memory and open files are flat, and everything acknowledged exists once.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
