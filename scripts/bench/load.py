"""The server's budgets: throughput, latency, pages, search, charts, disk and memory."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import rolloutdeck
from scripts.bench import baseline
from scripts.bench.client import rows_of
from tests.support.server import Product

NEEDLE_CHARS = 24
IDLE_CORES = 0.1
FREE_SECONDS = 20.0  # until processes have returned the memory of earlier work


def wait_until(ready: Callable[[], bool], seconds: float = 600, pause: float = 0.25) -> None:
    """Calls `ready` every `pause` seconds; not more often, because its requests are part of the load."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit("Timeout in the benchmark, see the server's log.")
        time.sleep(pause)


def wait_until_idle(server: Product) -> None:
    """Returns when compaction and indexing are done, which would otherwise slow down the pages."""
    wait_until(lambda: measure_load(server, 2.0) < IDLE_CORES, pause=0.1)


def measure_load(server: Product, seconds: float) -> float:
    """Number of cores that the server's processes use."""
    before = server.count_cpu_seconds()
    time.sleep(seconds)
    return (server.count_cpu_seconds() - before) / seconds


def open_run(server: Product, name: str) -> Any:
    """Opens a run and waits until the server has it."""
    settings = {"URL": server.url, "TOKEN": server.token, "SPOOL": str(server.home / "spool")}
    os.environ.update({f"ROLLOUTDECK_{key}": value for key, value in settings.items()})
    # A trainer does not log a hundred steps at once. Here none of them may be dropped.
    run = rolloutdeck.init(project="bench", name=name, queue_bytes=2 << 30)
    wait_until(partial(has_results, server, f"runs/{run.uid}/"))
    return run


def finish_run(run: Any) -> tuple[int, int]:
    """Ends the run. Returns how many rows the server has indexed, and how many rows, files and calls are lost."""

    def has_arrived() -> bool:
        status = run.status()
        return status.indexed is not None and not (status.waiting or status.files_waiting or status.is_indexing)

    wait_until(has_arrived)
    status = run.status()
    run.finish()
    lost = status.rejected + status.failed_calls + status.files_failed + status.file_rows_rejected
    return status.indexed or 0, lost + sum(status.dropped.values()) + sum(status.lost.values())


def list_bodies(server: Product, uid: str) -> list[Path]:
    """Returns the body files of a run, without those that compaction has replaced. The database must be SQLite."""
    query = "SELECT path FROM rollouts_segment WHERE run_id = (SELECT id FROM rollouts_run WHERE uid = ?) ORDER BY path"
    with closing(sqlite3.connect(f"file:{server.data / 'db.sqlite3'}?mode=ro", uri=True)) as database:
        return [server.data / "bodies" / path for (path,) in database.execute(query, [uid])]


def count_indexed_dumps(server: Product, uid: str) -> int:
    return int(server.get(f"runs/{uid}/")["dumps"].get("indexed", 0))


def has_results(server: Product, path: str) -> bool:
    try:
        return bool(server.get(path).get("results", True))
    except HTTPError as error:
        if error.code == 404:
            return False
        raise


def sustained(server: Product, files: list[Path]) -> dict[str, float]:
    """Samples per second from `log_samples` until all are indexed, and the used disk space."""
    steps = [rows_of(file) for file in files]
    run = open_run(server, "sustained")
    before = server.disk()
    started = time.perf_counter()
    for step, rows in enumerate(steps, start=1):
        run.log_samples(rows, step=step)
    wait_until(lambda: count_indexed_dumps(server, run.uid) >= len(files))
    seconds = time.perf_counter() - started
    run.finish()
    count = sum(map(len, steps))
    return {
        "samples": count,
        "seconds": seconds,
        "samples/s": count / seconds,
        "disk MB": (server.disk() - before) / 1e6,
    }


def latency(server: Product, files: list[Path]) -> dict[str, float]:
    """ms from `log_samples` of one step until the API has it."""
    run = open_run(server, "latency")
    waits = []
    for step, file in enumerate(files, start=1):
        rows = rows_of(file)
        time.sleep(0.5)
        started = time.perf_counter()
        run.log_samples(rows, step=step)
        wait_until(partial(has_results, server, f"samples/?run={run.uid}&split=train&step={step}"), pause=0.02)
        waits.append(time.perf_counter() - started)
    run.finish()
    return {"median ms": statistics.median(waits) * 1000, "max ms": max(waits) * 1000}


def measure_ms(fetch: Callable[[], object], times: int = 15) -> float:
    """Median ms."""
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        fetch()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1000


def page(server: Product, uid: str, step: int) -> float:
    """Median ms of a page of 50 samples, sorted by score. The worker is idle: it would double the time on two cores."""
    wait_until_idle(server)
    query = f"run={uid}&split=train&step={step}&ordering=score"
    return measure_ms(lambda: server.fetch(f"/api/v1/samples/?{query}"))


def many_steps(server: Product, file: Path, steps: int) -> float:
    """Median ms of a page of 50 samples in a run of `steps` steps. The last has all samples of `file`, the others 8."""
    rows = rows_of(file)
    run = open_run(server, "many")
    for step in range(1, steps):
        run.log_samples(rows[:8], step=step)
    run.log_samples(rows, step=steps)
    wait_until(lambda: count_indexed_dumps(server, run.uid) >= steps)
    run.finish()
    return page(server, run.uid, steps)


def search(server: Product, uid: str, file: Path, times: int = 7) -> dict[str, float]:
    """Median ms of searches in all steps of a run for substrings that nobody has searched, each in turn with a bare
    polars scan of the same body files for the same text; and of the same search once more."""
    rows, chance = rows_of(file), random.Random(1)
    files = list_bodies(server, uid)
    cold, again, scans = [], [], []
    for _ in range(times):
        text = str(chance.choice(rows)["response"])
        start = chance.randrange(max(1, len(text) - NEEDLE_CHARS))
        needle = text[start : start + NEEDLE_CHARS].replace("\n", " ").strip() or text[:NEEDLE_CHARS]
        path = f"/api/v1/samples/?run={uid}&split=train&q={quote(json.dumps(needle, ensure_ascii=False))}"
        scans.append(measure_ms(partial(baseline.scan_bodies, files, needle), 1))
        cold.append(measure_ms(partial(server.fetch, path), 1))
        again.append(measure_ms(partial(server.fetch, path), 1))
    return {name: statistics.median(values) for name, values in (("ms", cold), ("again", again), ("scan", scans))}


def count_points(server: Product, uid: str) -> int:
    """Points of the first metric."""
    result = server.get(f"runs/{uid}/metrics/?name=group0/metric0&max_points=0")
    return sum(len(curve["steps"]) for curve in result["series"].get("group0/metric0", []))


def metrics(server: Product, names: int, steps: int, runs: int = 3) -> dict[str, float]:
    """Sends runs x names x steps metrics, then requests 48 charts of all runs with 400 points: while the last rows are
    still compacted, which a training of usual speed never meets, and afterwards."""
    uids = []
    started = time.perf_counter()
    for number in range(runs):
        run = open_run(server, f"metrics-{number}")
        uids.append(run.uid)
        for step in range(1, steps + 1):
            run.log({f"group{k % 8}/metric{k}": (step * (k + 1) % 997) / 997 for k in range(names)}, step=step)
            if step % 500 == 0:
                time.sleep(0.05)
        run.finish(timeout=300)
    query = "&".join(f"name=group{k % 8}/metric{k}" for k in range(48))

    wait_until(lambda: all(count_points(server, uid) >= steps for uid in uids))
    loaded = time.perf_counter() - started

    def charts() -> None:
        for uid in uids:
            server.fetch(f"/api/v1/runs/{uid}/metrics/?{query}&max_points=400")

    result: dict[str, float] = {"points": runs * names * steps, "load seconds": loaded}
    result["while rows are compacted, ms"] = measure_ms(charts, 7)
    wait_until_idle(server)
    return result | {"48 charts x 3 runs, ms": measure_ms(charts, 7)}


def memory(server: Product, files: list[Path], total: int = 2_000_000_000) -> dict[str, float]:
    """MB of all processes, without mapped files, while `total` bytes are uploaded: before, median of the first and the
    last third, peak; and a minute later."""
    wait_until_idle(server)
    time.sleep(FREE_SECONDS)
    before, values = server.anonymous_memory(), []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            values.append(server.anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run = open_run(server, "memory")
    sent = step = 0
    while sent < total:
        file = files[step % len(files)]
        step += 1
        run.log_file(file, step=step, format="verl-jsonl")
        sent += file.stat().st_size
        wait_until(lambda: count_indexed_dumps(server, run.uid) >= step - 20)  # noqa: B023
    wait_until(lambda: count_indexed_dumps(server, run.uid) >= step)
    done.set()
    watcher.join()
    run.finish()
    third = max(1, len(values) // 3)
    time.sleep(60)
    return {
        "before": before,
        "first third": statistics.median(values[:third]),
        "last third": statistics.median(values[-third:]),
        "peak": max(values),
        "a minute later": server.anonymous_memory(),
    }
