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


# Of the standard library: what `import torch` has loaded before.
LOADED_BY_TORCH = "import concurrent.futures, dataclasses, inspect, logging, ssl, subprocess, tempfile, urllib.request"


def measure_import(code: str) -> float:
    """Returns the median time of `code`, which imports `rolloutdeck`, in ms, in a new process that has the modules of a
    trainer."""
    folder = str(Path(rolloutdeck.__file__).parent.parent)
    timed = f"began = time.perf_counter()\n{code}\nprint(time.perf_counter() - began)"
    program = f"import sys, time\nsys.path.insert(0, {folder!r})\n{LOADED_BY_TORCH}\n{timed}"
    command = [sys.executable, "-I", "-c", program]
    return statistics.median(float(subprocess.check_output(command)) for _ in range(9)) * 1000


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
