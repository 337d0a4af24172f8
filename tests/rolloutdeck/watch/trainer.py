"""A trainer that writes files with fixed times, and turns of a `watch` that reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from rolloutdeck.cli.folders.run_follower import RunFollower

StartWatch = Callable[..., RunFollower]


class Trainer:
    """Writes each file 10 seconds after the one before, so that the test decides the order of the files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, 1_700_000_000

    def write(self, name: str, text: str, mode: str = "w") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
        self.clock += 10
        os.utime(path, (self.clock, self.clock))
        return path

    def write_step(self, step: int, launch: int = 1, split: str = "rollout") -> Path:
        return self.write(f"{split}/{step}.jsonl", build_step_text(step, launch))

    def write_metrics(self, *steps: int, launch: int = 1, mode: str = "a") -> Path:
        return self.write("metrics.jsonl", "".join(build_metric_line(step, launch) for step in steps), mode)


def build_step_text(step: int, launch: int = 1) -> str:
    rows = [{"input": f"{n}+1", "output": f"launch {launch}\u2028", "score": 0.0, "step": step} for n in range(4)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def build_metric_line(step: int, launch: int = 1) -> str:
    return json.dumps({"step": step, "data": {"loss": step / launch}}) + "\n"


def run_turns(watch: RunFollower, count: int = 3) -> int:
    return sum(watch.send_ready() for _ in range(count))
