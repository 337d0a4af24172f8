"""A pinned artifact of a gigabyte: brought to the server, and pulled from it as the next run would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from scripts.bench.load import open_run, until
from tests.rolloutdeck.safe_pickle import sparse
from tests.support.server import Product

PIECE = 16 << 20


def step_folder(into: Path, size: int) -> Path:
    """What the trainer keeps of a step of two rows: `gen_batch.dp` with `size` random bytes, and its marker."""
    folder = into / "GBS1_N2_in128_out256" / "1"
    folder.mkdir(parents=True)
    batch = sparse.batch(folder / "gen_batch.dp", size)
    with batch.open("r+b") as file:
        hole = os.lseek(file.fileno(), 0, os.SEEK_HOLE)
        end = os.lseek(file.fileno(), hole, os.SEEK_DATA)
        for at in range(hole, end, PIECE):
            file.seek(at)
            file.write(os.urandom(min(PIECE, end - at)))
    (folder / "meta.json").write_text('{"global_steps": 1}')
    return folder


def copied(folder: Path, into: Path) -> float:
    """Seconds of `cp` and `sha256sum`, one after the other."""
    began = time.perf_counter()
    subprocess.run(["cp", "-r", folder, into], check=True)
    subprocess.run(["sha256sum", into / "gen_batch.dp"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def pulled(server: Product, folder: Path, scratch: Path) -> dict[str, float]:
    """Seconds until a step's files are on the server and judged, and to pull them; MB that `pull` took at most."""
    shape = {"trainer.experiment_name": "next", "trainer.project_name": "bench", "data.train_batch_size": 1}
    run = open_run(server, "kept")
    began = time.perf_counter()
    run.log_artifact(folder, 1, send_now=True)
    until(lambda: any(one["state"] == "ready" for one in server.get(f"runs/{run.uid}/artifacts/")["results"]))
    sent = time.perf_counter() - began
    server.post("pins/", {"run": run.uid, "step": 1, "target_step": 1, "plan": "default"})
    words = ["pull", "--project", "bench", "--run", "next", "--into", str(scratch), "--trainer", "verl", "--set"]
    settings = [f"{name}={value}" for name, value in shape.items()]
    began = time.perf_counter()
    pull = subprocess.Popen(
        [sys.executable, "-m", "rolloutdeck", *words, *settings], env=server.environ, stdout=subprocess.DEVNULL
    )
    most = 0.0
    while pull.poll() is None:
        most = max(most, peak(pull.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    if pull.returncode:
        raise SystemExit("rolloutdeck pull failed")
    return {"sent": sent, "pulled": seconds, "MB": most}


def peak(pid: int) -> float:
    """The most memory in MB of a process so far; its rusage would count what it was forked from."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
