"""A training that logs samples until a file exists, and notes in a ledger which steps are durable.

    python -m tests.chaos.trainer LEDGER STOP PAUSE

PAUSE is the time between two steps in seconds. The ledger has one line per step whose rows are in the spool: the client
has promised not to lose them. A training that was killed continues after the last step of the ledger, as one that loads
a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import rolloutdeck

PROJECT, NAME = "chaos", "live"
ROWS = 32


def build_rows(step: int) -> list[dict[str, Any]]:
    return [
        {
            "prompt": f"What is {row // 8} + {step}?",
            "response": f"{row // 8} + {step} = {(row * 7 + step) % 99}. Sample {row} of step {step}.",
            "score": float((row + step) % 3 == 0),
            "group": row // 8,
            "index": row % 8,
        }
        for row in range(ROWS)
    ]


def write_batch(folder: Path, step: int) -> Path:
    """Writes the file of a step that a pin makes the client upload."""
    path = folder / str(step) / "batch.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(build_rows(step)))
    return path.parent


def read_ledger(path: Path) -> list[int]:
    """The durable steps. A kill may leave half a line at the end, which does not count."""
    text = path.read_text() if path.exists() else ""
    return [int(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def train(ledger: Path, stop: Path, pause: float) -> None:
    run = rolloutdeck.init(PROJECT, NAME, resume="allow", checkpoint_dir=ledger.parent)
    step = max(read_ledger(ledger), default=0)
    with ledger.open("a", buffering=1) as file:
        while not stop.exists():
            step += 1
            run.log_samples(build_rows(step), step)
            run.log({"critic/score/mean": step / 10}, step)
            run.log_artifact(write_batch(ledger.parent / "batches", step), step)
            if run._threads.writer.flush(60):  # there is no public call: a trainer does not wait for its disk
                file.write(f"{step}\n")
                os.fsync(file.fileno())
            time.sleep(pause)
    run.finish(timeout=120)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
