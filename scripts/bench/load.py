"""The server's side of the budgets: throughput, latency, pages, search, charts, disk and memory."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

import rolloutdeck
from scripts.bench.client import rows_of
from tests.support.server import Product


def until(ready: Callable[[], bool], seconds: float = 600, pause: float = 0.25) -> None:
    """Asks rarely, because on few cores asking is part of the load."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SystemExit("the benchmark waited in vain; see the server's log")
        time.sleep(pause)


def open_run(server: Product, name: str) -> Any:
    """A run of this process, once the server has it."""
    told = {"URL": server.url, "TOKEN": server.token, "SPOOL": str(server.home / "spool")}
    os.environ.update({f"ROLLOUTDECK_{key}": value for key, value in told.items()})
    # No trainer hands over a hundred steps at once; here they lie in memory anyway, and none may be left out.
    run = rolloutdeck.init(project="bench", name=name, queue_bytes=2 << 30)
    until(partial(answers, server, f"runs/{run.uid}/"))
    return run


def indexed(server: Product, uid: str) -> int:
    """How many dumps of the run are indexed."""
    return int(server.get(f"runs/{uid}/")["dumps"].get("indexed", 0))


def answers(server: Product, path: str) -> bool:
    try:
        return bool(server.get(path).get("results", True))
    except HTTPError as error:
        if error.code == 404:
            return False
        raise


def sustained(server: Product, files: list[Path]) -> dict[str, float]:
    """Samples per second from `log_samples` to indexed, everything included, and what the disk holds afterwards."""
    steps = [rows_of(file) for file in files]
    run = open_run(server, "sustained")
    before = server.disk()
    began = time.perf_counter()
    for step, rows in enumerate(steps, start=1):
        run.log_samples(rows, step=step)
    until(lambda: indexed(server, run.uid) >= len(files))
    seconds = time.perf_counter() - began
    count = sum(map(len, steps))
    return {
        "samples": count,
        "seconds": seconds,
        "samples/s": count / seconds,
        "disk MB": (server.disk() - before) / 1e6,
    }


def latency(server: Product, files: list[Path]) -> dict[str, float]:
    """ms from `log_samples` to the step standing in the API, one step alone."""
    run = open_run(server, "latency")
    waits = []
    for step, file in enumerate(files, start=1):
        rows = rows_of(file)
        time.sleep(0.5)
        began = time.perf_counter()
        run.log_samples(rows, step=step)
        until(partial(answers, server, f"samples/?run={run.uid}&split=train&step={step}"), pause=0.02)
        waits.append(time.perf_counter() - began)
    return {"median ms": statistics.median(waits) * 1000, "max ms": max(waits) * 1000}


def timed(fetch: Callable[[], object], times: int = 15) -> float:
    """Median ms."""
    spans = []
    for _ in range(times):
        began = time.perf_counter()
        fetch()
        spans.append(time.perf_counter() - began)
    return statistics.median(spans) * 1000


def page(server: Product, uid: str, step: int) -> float:
    query = f"run={uid}&split=train&step={step}&ordering=score"
    return timed(lambda: server.fetch(f"/api/v1/samples/?{query}"))


def many_steps(server: Product, file: Path, steps: int) -> float:
    """Median ms of the page of 50 in a run of `steps` steps, the last as big as a real one, the others of 8 samples."""
    rows = rows_of(file)
    run = open_run(server, "many")
    for step in range(1, steps):
        run.log_samples(rows[:8], step=step)
    run.log_samples(rows, step=steps)
    until(lambda: indexed(server, run.uid) >= steps)
    return page(server, run.uid, steps)


def search(server: Product, uid: str, needle: str) -> tuple[float, int]:
    """Median ms of an exact substring over all steps, and how many samples hold it."""
    path = f"/api/v1/samples/?run={uid}&split=train&q={quote(json.dumps(needle, ensure_ascii=False))}"
    found = json.loads(server.fetch(path))
    return timed(lambda: server.fetch(path), 7), int(found["count"])


def points(server: Product, uid: str) -> int:
    """How many points of the first metric the server has."""
    found = server.get(f"runs/{uid}/metrics/?name=group0/metric0&max_points=0")
    return sum(len(curve["steps"]) for curve in found["series"].get("group0/metric0", []))


def metrics(server: Product, names: int, steps: int, runs: int = 3) -> dict[str, float]:
    """Loads runs x names x steps of metrics over HTTP, then asks for 48 charts of all runs at 400 points."""
    uids = []
    began = time.perf_counter()
    for number in range(runs):
        run = open_run(server, f"metrics-{number}")
        uids.append(run.uid)
        for step in range(1, steps + 1):
            run.log({f"group{k % 8}/metric{k}": (step * (k + 1) % 997) / 997 for k in range(names)}, step=step)
            if step % 500 == 0:
                time.sleep(0.05)
        run.finish(timeout=300)
    query = "&".join(f"name=group{k % 8}/metric{k}" for k in range(48))

    until(lambda: all(points(server, uid) >= steps for uid in uids))
    loaded = time.perf_counter() - began

    def charts() -> None:
        for uid in uids:
            server.fetch(f"/api/v1/runs/{uid}/metrics/?{query}&max_points=400")

    return {"points": runs * names * steps, "load seconds": loaded, "48 charts x 3 runs, ms": timed(charts, 7)}


def memory(server: Product, files: list[Path], total: int = 2_000_000_000) -> dict[str, float]:
    """MB (sum of PSS) while `total` bytes arrive as files: at rest, median of the first and the last third, peak."""
    rest, seen = server.memory(), []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen.append(server.memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run = open_run(server, "memory")
    sent = step = 0
    while sent < total:
        file = files[step % len(files)]
        step += 1
        run.log_file(file, step=step, format="verl-jsonl")
        sent += file.stat().st_size
        until(lambda: indexed(server, run.uid) >= step - 20)  # noqa: B023
    until(lambda: indexed(server, run.uid) >= step)
    done.set()
    watcher.join()
    third = max(1, len(seen) // 3)
    return {
        "at rest": rest,
        "first third": statistics.median(seen[:third]),
        "last third": statistics.median(seen[-third:]),
        "peak": max(seen),
    }
