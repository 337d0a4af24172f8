"""Killing any process at any time ends with the same rows as an undisturbed run. Real processes, real kills."""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Product

pytestmark = pytest.mark.slow
PARTS = ("uvicorn", "celery", "redis")
STEPS, ROWS = 16, 32


def start_writer(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.writer", str(folder), "--steps", str(STEPS), "--pause", "0.01"]
    return subprocess.Popen(command)


def start_watch(product: Product, folder: Path) -> subprocess.Popen[bytes]:
    return product.command("watch", str(folder), "--project", "kill", "--run", "victim")


def figures(product: Product) -> dict[str, Any]:
    """Everything a page could show of the run: steps, samples without their ids, points."""
    runs = product.get("runs/?project=kill")["results"]
    if not runs:
        return {}
    uid = runs[0]["id"]
    steps = product.get(f"runs/{uid}/steps/")["results"]
    lines = product.fetch(f"/api/v1/exports/samples/?run={uid}&format=jsonl").splitlines()
    samples = [json.loads(line) for line in lines]
    metrics = product.get(f"runs/{uid}/metrics/?name=critic/score/mean&max_points=0")
    return {
        "steps": sorted((step["split"], step["step"], step["samples"], step["score_mean"]) for step in steps),
        "samples": sorted((row["split"], row["step"], row["prompt"], row["response"], row["score"]) for row in samples),
        "metrics": metrics,
    }


def settled(product: Product, seconds: float = 240) -> dict[str, Any]:
    """The figures once every file is in, or as far as they came. One answer may be cut off: that of a server which ends
    since its supervisor was the last to be killed."""
    deadline = time.monotonic() + seconds
    result: dict[str, Any] = {}
    cut = 0
    while time.monotonic() < deadline:
        try:
            result = figures(product)
            if len(result.get("steps", [])) == STEPS + STEPS // 4 and len(
                result["samples"]
            ) == ROWS * STEPS + ROWS // 2 * (STEPS // 4):
                return result
        except OSError:
            pass
        except http.client.IncompleteRead:
            cut += 1
            if cut > 1:
                raise
        time.sleep(0.5)
    return result


def undisturbed(folder: Path) -> dict[str, Any]:
    with Product() as product:
        writer, watch = start_writer(folder), start_watch(product, folder)
        writer.wait(60)
        result = settled(product)
        watch.terminate()
        watch.wait(10)
    return result


def disturbed(folder: Path, chance: random.Random) -> dict[str, Any]:
    with Product() as product:
        writer, watch = start_writer(folder), start_watch(product, folder)
        while writer.poll() is None:
            time.sleep(chance.uniform(0.1, 1.0))
            part = chance.choice((*PARTS, "watch"))
            if part == "watch":
                watch.kill()
                watch.wait()
                watch = start_watch(product, folder)
            else:
                product.kill(part)
        result = settled(product)
        watch.terminate()
        watch.wait(10)
    return result


@pytest.mark.timeout(420)
def test_random_kills_of_every_process_end_with_the_rows_of_an_undisturbed_run(tmp_path: Path) -> None:
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 100_000))
    print(f"again with KILL_SEED={seed}")
    calm = undisturbed(tmp_path / "calm")
    assert len(calm["samples"]) == ROWS * STEPS + ROWS // 2 * (STEPS // 4)
    assert disturbed(tmp_path / "stormy", random.Random(seed)) == calm
