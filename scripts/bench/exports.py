"""Exports compared with a plain polars loop: `python -m scripts.bench.exports UID`, with the server's environment.

The loop reads the files of the run with polars, one after another, and writes them in the format of the export: all
rows and all columns, whatever the layout leaves out. Both run in turn in one process. The budget is on CPU seconds, so
that other programs on the machine matter less; both use several cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.server import Product

if TYPE_CHECKING:
    from rollouts.models import Run

REPEATS = 3
CASES = {
    "samples, jsonl": {"layout": "samples"},
    "samples, parquet": {"layout": "samples", "format": "parquet"},
    "sft, jsonl": {"layout": "sft"},
    "preferences, jsonl": {"layout": "preferences"},
}


def measure_exports(server: Product, uid: str) -> list[tuple[str, str, str]]:
    """Returns rows (what, measured, budget)."""
    settings = {"ROLLOUTDECK_DATA": str(server.data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    rows = []
    for case in CASES:
        command = [sys.executable, "-m", "scripts.bench.exports", uid, case]
        done = subprocess.run(command, env={**server.environ, **settings}, check=True, capture_output=True)
        result = json.loads(done.stdout)
        what = f"export of {result['samples']:,} samples, {case}"
        measured = f"{result['export_cpu'] / result['loop_cpu']:.2f} x its {result['loop_cpu']:.2f} s CPU"
        rows += [(f"{what}, to a polars loop", measured, "<= 1.5 x")]
        seconds = f"{result['export'] / result['loop']:.2f} x its {result['loop']:.2f} s"
        rows += [("  by the clock", seconds, "")]
        rows += [("  peak of memory, without mapped files", f"{result['MB']:.0f} MB", "<= 300 MB")]
    return rows


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    from rollouts.models import Run, Sample

    run, options = Run.objects.get(uid=sys.argv[1]), CASES[sys.argv[2]]
    results: dict[str, float] = {"samples": Sample.objects.filter(step__run=run).count()}
    with tempfile.TemporaryDirectory(prefix="rd-bench-export-") as folder:
        target = Path(folder) / "file"
        results["MB"] = measure_memory(lambda: write_archive(run, options, target))
        file_format = options.get("format", "jsonl")
        results["loop"], results["loop_cpu"] = measure_seconds(lambda: run_polars_loop(run, target, file_format))
        results["export"], results["export_cpu"] = measure_seconds(lambda: write_archive(run, options, target))
    print(json.dumps(results))


def measure_memory(work: Callable[[], object]) -> float:
    """Returns the peak of the process's own memory, in MB: the pages that no file has."""
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
            peak = max(peak, *(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak / 1024


def measure_seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds of the fastest of some runs."""
    seconds, cpu_seconds = [], []
    for _ in range(REPEATS):
        started, cpu_started = time.perf_counter(), time.process_time()
        work()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
    return min(seconds), min(cpu_seconds)


def run_polars_loop(run: Run, target: Path, file_format: str) -> None:
    import polars as pl

    from rollouts.models import Segment
    from rollouts.storage import fetch_body_file

    with target.open("wb") as file:
        for path in Segment.objects.filter(dumps__run=run).distinct().values_list("path", flat=True):
            table = pl.read_parquet(fetch_body_file(path))
            if file_format == "parquet":
                table.write_parquet(file, compression="zstd", compression_level=1)  # as Arrow does for the export
            else:
                table.write_ndjson(file)


def write_archive(run: Run, options: dict[str, Any], target: Path) -> None:
    from rollouts.exports import Export, parse_options, stream_archive
    from rollouts.query import find_samples

    samples = find_samples(run, ordering="order").samples
    with target.open("wb") as file:
        for chunk in stream_archive(Export(run.project, parse_options(run.project, options), [samples], {})):
            file.write(chunk)


if __name__ == "__main__":
    main()
