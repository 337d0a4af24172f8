"""A pinned artifact of a gigabyte: uploaded to the server, and pulled from it as by the next run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from scripts.bench.load import open_run, wait_until
from tests.rolloutdeck.safe_pickle import sparse
from tests.support.server import Product

CHUNK_BYTES = 16 << 20


def write_step(root: Path, size: int) -> Path:
    """A step of two rows as the trainer writes it: `gen_batch.dp` with `size` random bytes, and its marker."""
    folder = root / "GBS1_N2_in128_out256" / "1"
    folder.mkdir(parents=True)
    batch = sparse.write_batch(folder / "gen_batch.dp", size)
    with batch.open("r+b") as file:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        end = os.lseek(file.fileno(), hole, os.SEEK_DATA)
        for offset in range(hole, end, CHUNK_BYTES):
            file.seek(offset)
            file.write(os.urandom(min(CHUNK_BYTES, end - offset)))
    (folder / "meta.json").write_text('{"global_steps": 1}')
    return folder


def measure_copy(folder: Path, target: Path) -> float:
    """Seconds of `cp` and then `sha256sum`."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", folder, target], check=True)
    subprocess.run(["sha256sum", target / "gen_batch.dp"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure_pull(server: Product, folder: Path, scratch: Path) -> dict[str, float]:
    """Seconds until the step's files are uploaded and verified, to pull them, and the peak memory of `pull` in MB."""
    shape = {"trainer.experiment_name": "next", "trainer.project_name": "bench", "data.train_batch_size": 1}
    run = open_run(server, "kept")
    started = time.perf_counter()
    run.log_artifact(folder, 1, send_now=True)
    wait_until(
        lambda: any(artifact["state"] == "ready" for artifact in server.get(f"runs/{run.uid}/artifacts/")["results"])
    )
    sent = time.perf_counter() - started
    run.finish()
    server.post("pins/", {"run": run.uid, "step": 1, "target_step": 1, "plan": "default"})
    arguments = ["pull", "--project", "bench", "--run", "next", "--into", str(scratch), "--trainer", "verl", "--set"]
    settings = [f"{name}={value}" for name, value in shape.items()]
    started = time.perf_counter()
    pull = subprocess.Popen(
        [sys.executable, "-m", "rolloutdeck", *arguments, *settings], env=server.environ, stdout=subprocess.DEVNULL
    )
    peak = 0.0
    while pull.poll() is None:
        peak = max(peak, read_peak_memory(pull.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - started
    if pull.returncode:
        raise SystemExit("rolloutdeck pull failed")
    return {"sent": sent, "pulled": seconds, "MB": peak}


def read_peak_memory(pid: int) -> float:
    """Peak memory of a process in MB. `rusage` would include the process that it was forked from."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
