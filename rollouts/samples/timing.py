"""How long a sample took, and how far its policy was behind the trainer. This module does not import Django.

Programs log timings of a sample in different forms: seconds or milliseconds, numbers or nested objects. Only names that
are known are read; the body keeps everything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollouts.samples.record import Record
from rollouts.samples.values import to_float, to_integer

MAX_SECONDS: Final = 1e7
MAX_STALENESS: Final = 2**31 - 1
MAX_DEPTH: Final = 3
TRAINER_VERSION_KEY: Final = "trainer_version"
# Names without their unit. Each name is followed by other names of the same thing.
GENERATION_NAMES: Final = ("generation", "generate", "generate_sequences", "gen", "agent.model", "model", "llm")
TOOL_NAMES: Final = ("tool", "tools", "tool_calls", "non_generation", "agent.harness", "env", "environment")
REWARD_NAMES: Final = ("reward", "scoring", "compute_score", "score", "grading")
TOTAL_NAMES: Final = ("total", "duration", "e2e", "elapsed")
PART_NAMES: Final = {"generation": GENERATION_NAMES, "tool": TOOL_NAMES, "reward": REWARD_NAMES, "total": TOTAL_NAMES}
AGENT_LOOP_NAMES: Final = ("generate_sequences", "tool_calls", "compute_score")
# Endings of a name, and the seconds of their unit. `.duration` is a part of a span.
UNITS: Final = (
    (".duration", 1.0), ("_ms", 0.001), ("_seconds", 1.0), ("_secs", 1.0), ("_time", 1.0), ("_s", 1.0),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SampleTiming:
    """Seconds of the parts of one sample; None if they were not recorded. `total` is at least the sum of the parts."""

    generation: float | None = None
    tool: float | None = None
    reward: float | None = None
    total: float | None = None


def read_timing(timing: object, metrics: object = None) -> SampleTiming:
    """Reads the `timing` of a sample; its `metrics` have the parts of agent loops."""
    values = dict(iterate_seconds(metrics)) if isinstance(metrics, Mapping) else {}
    known = {name: seconds for name, seconds in values.items() if name in AGENT_LOOP_NAMES}
    known |= dict(iterate_seconds(timing)) if isinstance(timing, Mapping) else {}
    parts: dict[str, float] = {}
    for part, names in PART_NAMES.items():
        found = next((known[name] for name in names if name in known), None)
        if found is not None:
            parts[part] = found
    total, sums = parts.pop("total", None), sum(parts.values())
    if total is None and isinstance(timing, Mapping):
        total = read_span(timing)
    if parts and (total is None or total < sums):
        total = sums if "generation" in parts else None  # tools alone are not the whole sample
    return SampleTiming(**parts, total=total)


def iterate_seconds(values: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Yields (name without unit, seconds); names of nested objects are joined by a dot."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                yield from iterate_seconds(value, f"{name}.", depth + 1)
                if (seconds := read_span(value)) is not None:
                    yield name, seconds
        elif (seconds := to_seconds(value)) is not None:
            ending, unit = next(((end, unit) for end, unit in UNITS if name.endswith(end)), ("", 1.0))
            yield name.removesuffix(ending), seconds * unit


def read_span(value: Mapping[Any, Any]) -> float | None:
    """Returns the seconds between `start` and `end`."""
    start, end = value.get("start"), value.get("end")
    if not isinstance(start, int | float) or not isinstance(end, int | float):
        return None
    first, last = to_float(start), to_float(end)
    return None if first is None or last is None else to_seconds(last - first)


def to_seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = to_float(value)
    return number if number is not None and 0 <= number < MAX_SECONDS else None


def read_duration(record: Record) -> float | None:
    """Returns the seconds that the sample took; None if they were not recorded."""
    if record.timing is None and record.metrics is None:
        return to_seconds(record.extras.get("duration"))
    return read_timing(record.timing, record.metrics).total


def compute_staleness(record: Record) -> int | None:
    """Returns the version of the trainer minus that of the policy that wrote the sample.

    None if either is unknown and no staleness was logged. Programs count versions from different numbers, so a step
    number alone is not enough. A sample that is newer than the trainer was counted differently.
    """
    trainer, own = to_integer(record.extras.get(TRAINER_VERSION_KEY)), record.policy_version
    staleness = to_integer(record.extras.get("staleness")) if trainer is None or own is None else trainer - own
    return staleness if staleness is not None and 0 <= staleness <= MAX_STALENESS else None
