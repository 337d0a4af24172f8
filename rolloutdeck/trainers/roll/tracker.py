"""The metrics of a run of ROLL: `track()` registers a tracker that writes a file for `watch`.

The file has one line per step, {"step", "data"} like verl's file logger, next to the generations of `rollout_dump_dir`.
Source: ROLL 8eb27cc2: `utils/tracking.py` (the registry, `@` tags of names), `pipeline/base_pipeline.py` (a resumed run
logs its complete history again, in a separate thread).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolloutdeck.trainers.common import catch_errors, once_logger

TRACKER_NAME = "rolloutdeck"
METRICS_FILE = "metrics.jsonl"


def track() -> None:
    """Registers the tracker. Call it before ROLL's pipeline is created, and set `track_with: rolloutdeck`.

    `tracker_kwargs`: `folder`, by default rollout_dump_dir; `also`, a tracker of ROLL that gets the same metrics and
    all other arguments. Raises ImportError if ROLL is not installed.
    """
    from roll.utils import tracking

    def create(config: dict[str, Any], **arguments: Any) -> RollTracker:
        folder, also = arguments.pop("folder", None) or config.get("rollout_dump_dir"), arguments.pop("also", None)
        return RollTracker(folder, tracking.create_tracker(also, config, **arguments) if also else None)

    tracking.tracker_registry[TRACKER_NAME] = create


class RollTracker:
    """A tracker as ROLL calls it. A step that can't be written is logged once and never stops the training."""

    def __init__(self, folder: object, also: Any = None) -> None:
        self.path = Path(str(folder)) / METRICS_FILE if folder else None
        self.also, self._thread = also, threading.get_ident()
        if self.path is None:
            message = "Metrics are not written: set rollout_dump_dir, or tracker_kwargs: {folder: …}."
            once_logger.log_once("roll", message)

    def log(self, values: Mapping[str, Any], step: int | None, **arguments: Any) -> None:
        if threading.get_ident() == self._thread:  # else it is history, which is in the file already
            self._write(values, step)
        if self.also is not None:
            self.also.log(values, step=step, **arguments)

    def finish(self) -> None:
        if self.also is not None:
            self.also.finish()

    @catch_errors
    def _write(self, values: Mapping[str, Any], step: int | None) -> None:
        if self.path is None or step is None:
            return
        line = json.dumps({"step": int(step), "data": dict(iter_numbers(values))}).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(line) < len(line):  # a full disk: an incomplete line would damage the next one
                file.truncate(end)
                raise OSError(f"{self.path} has no room for the metrics of step {step}")


def iter_numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yields the numbers in `values`, those of dicts under both names; ROLL's tags like `@mean` are removed from names.

    NaN and infinity are None.
    """
    for key, value in values.items():
        name = prefix + str(key).rsplit("@", 1)[0]
        if isinstance(value, Mapping):
            yield from iter_numbers(value, f"{name}/")
        elif (number := _convert_number(value)) is not None:
            yield name, number if math.isfinite(number) else None


def _convert_number(value: Any) -> float | None:
    """Returns a number, also of numpy's and torch's scalars; None for other values."""
    if isinstance(value, (int, float)):
        return value
    try:
        return None if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
