"""The client's budgets: how long the trainer is blocked and how long another thread stalls."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import rolloutdeck

KEYS = {"input": "prompt", "output": "response", "gts": "ground_truth", "uid": "group", "sample": "index"}


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a workload file with the keys of `Run.log_samples`."""
    rows = [json.loads(line) for line in file.read_bytes().split(b"\n") if line]
    return [{KEYS.get(key, key): value for key, value in row.items() if key != "step"} for row in rows]


class Busy(threading.Thread):
    """A thread that runs Python without a pause and records the longest time that it was stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.worst = 0.0
        self.stopped = False

    def run(self) -> None:
        last = time.perf_counter()
        while not self.stopped:
            now = time.perf_counter()
            self.worst = max(self.worst, now - last)
            last = now


def measure_import(code: str) -> float:
    """Returns the median time of `code`, which imports `rolloutdeck`, in ms, without the start of the interpreter."""

    def once(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
        return time.perf_counter() - began

    path = f"import sys; sys.path.insert(0, {str(Path(rolloutdeck.__file__).parent.parent)!r});"
    gaps = [once(path + code) - once(path) for _ in range(9)]
    return statistics.median(gaps) * 1000


def blocked(run: Any, files: list[Path]) -> dict[str, float]:
    """Returns the ms that `log_samples` and `log_file` block the trainer, and the worst stall of another thread."""
    samples, shipped, stalls = [], [], []
    for step, file in enumerate(files, start=1):
        rows = rows_of(file)
        busy = Busy()
        busy.start()
        time.sleep(0.2)
        busy.worst = 0.0
        began = time.perf_counter()
        run.log_samples(rows, step=step)
        samples.append(time.perf_counter() - began)
        time.sleep(0.8)
        busy.stopped = True
        busy.join()
        stalls.append(busy.worst)
        began = time.perf_counter()
        run.log_file(file, step=step, split="eval", format="verl-jsonl")
        shipped.append(time.perf_counter() - began)
    return {
        "log_samples, median ms": statistics.median(samples) * 1000,
        "log_file, median ms": statistics.median(shipped) * 1000,
        "worst stall of a busy thread, median ms": statistics.median(stalls) * 1000,
        "worst stall of a busy thread, max ms": max(stalls) * 1000,
    }
