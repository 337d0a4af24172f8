"""Writes the files of a run as a trainer does: plain open, line by line, no rename, whole files again after a resume.

As a program (`python -m tests.support.writer FOLDER --steps 12`) it writes while `watch` reads.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any


def rows(step: int, count: int, launch: int = 1) -> list[dict[str, Any]]:
    """Rows with the keys of a V0 rollout, the same for the same step and launch."""
    chance = random.Random(f"{launch}-{step}")
    return [
        {
            "input": f"user\nWhat is {n // 4} + {step}?\nassistant\n",
            "output": f"Let me see.\u2028{n // 4} + {step} = {chance.randrange(99)}\nsample {n} of launch {launch}",
            "gts": str(n // 4 + step),
            "score": float(chance.randrange(2)),
            "step": step,
            "acc": bool(chance.randrange(2)),
        }
        for n in range(count)
    ]


def write_slowly(file: Path, lines: list[str], pause: float) -> None:
    """Writes in pieces that end in the middle of lines, as a buffered writer does."""
    text = "".join(line + "\n" for line in lines)
    with file.open("w", encoding="utf-8") as out:
        for start in range(0, len(text), 4001):
            out.write(text[start : start + 4001])
            out.flush()
            time.sleep(pause)


def train(folder: Path, steps: range, *, count: int = 32, launch: int = 1, pause: float = 0.002) -> None:
    """One launch: a rollout file per step, validation every fourth step, and a new metrics file."""
    for name in ("rollout", "val"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("wb", buffering=0) as metrics:
        for step in steps:
            created = [json.dumps(row, ensure_ascii=False) for row in rows(step, count, launch)]
            write_slowly(folder / "rollout" / f"{step}.jsonl", created, pause)
            if step % 4 == 0:
                write_slowly(folder / "val" / f"{step}.jsonl", created[: count // 2], pause)
            line = json.dumps({"step": step, "data": {"critic/score/mean": step / 10, "actor/entropy": 1 / step}})
            metrics.write(line[:9].encode())
            time.sleep(pause)
            metrics.write(line[9:].encode() + b"\n")
            time.sleep(pause * 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--launch", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.002)
    result = parser.parse_args()
    train(result.folder, range(result.first, result.first + result.steps), launch=result.launch, pause=result.pause)


if __name__ == "__main__":
    main()
