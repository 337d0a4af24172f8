"""The metrics of a run of ROLL, which knows trackers by name: `track()` adds one that writes a file for `watch`.

A line per step, {"step", "data"} as verl's file logger writes it, beside the generations of `rollout_dump_dir`. Read
from ROLL 8eb27cc2: `utils/tracking.py` (the registry, `@` tags of names), `pipeline/base_pipeline.py` (a resumed run
tells its whole history once more, in a thread of its own).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.trainers.common import catch_errors, once_logger

NAME = "rolloutdeck"
FILE = "metrics.jsonl"


def track() -> None:
    """Call it in ROLL's start script before the pipeline is made, and set `track_with: rolloutdeck`.

    `tracker_kwargs`: `folder`, rollout_dump_dir without it; `also`, a tracker of ROLL that is told the same, with all
    other words. Raises ImportError where ROLL is not installed.
    """
    from roll.utils import tracking

    def made(config: dict[str, Any], **words: Any) -> RollTracker:
        folder, also = words.pop("folder", None) or config.get("rollout_dump_dir"), words.pop("also", None)
        return RollTracker(folder, tracking.create_tracker(also, config, **words) if also else None)

    tracking.tracker_registry[NAME] = made


class RollTracker:
    """A tracker as ROLL calls it. A step that can't be written costs that step and one warning, never the training."""

    def __init__(self, folder: object, also: Any = None) -> None:
        self.path = Path(str(folder)) / FILE if folder else None
        self.also, self._thread = also, threading.get_ident()
        if self.path is None:
            once_logger.log_once(
                "roll", "Metrics are not written: set rollout_dump_dir, or tracker_kwargs: {folder: …}."
            )

    def log(self, values: Mapping[str, Any], step: int | None, **words: Any) -> None:
        if threading.get_ident() == self._thread:  # else it is history, which the file has
            self._write(values, step)
        if self.also is not None:
            self.also.log(values, step=step, **words)

    def finish(self) -> None:
        if self.also is not None:
            self.also.finish()

    @catch_errors
    def _write(self, values: Mapping[str, Any], step: int | None) -> None:
        if self.path is None or step is None:
            return
        line = json.dumps({"step": int(step), "data": dict(numbers(values))}).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(line) < len(line):  # a full disk: half a line would spoil the next step's
                file.truncate(end)
                raise OSError(f"{self.path} has no room for the metrics of step {step}")


def numbers(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float | None]]:
    """The numbers among `values`, those of dicts under both names; ROLL's `@mean` and its like are no part of a name.
    Not a number: None."""
    for key, value in values.items():
        name = above + str(key).rsplit("@", 1)[0]
        if isinstance(value, Mapping):
            yield from numbers(value, f"{name}/")
        elif (number := _number(value)) is not None:
            yield name, number if math.isfinite(number) else None


def _number(value: Any) -> float | None:
    """Also of numpy's and torch's scalars; None for what is no number."""
    if isinstance(value, (int, float)):
        return value
    try:
        return None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
