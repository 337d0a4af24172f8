"""Runs that are drawn as one line: the mean, with the range from the lowest to the highest run."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rollouts.metrics import Curve, downsample_points, load_curves
from rollouts.models import Run, RunQuerySet
from rollouts.runs.configs import load_run_configs

MAX_GROUP_RUNS: Final = 16
MAX_COMPARED_RUNS: Final = 300  # whose configurations are compared
MAX_LISTED_TAGS: Final = 30
NAMES_AT_ONCE: Final = 20  # of metrics, of which all points are in memory
MIN_BAND_RUNS: Final = 2
SEEDS: Final = "seeds"
TAG: Final = "tag:"


@dataclass(frozen=True, slots=True)
class RunGroup:
    """`key` is `tag:NAME`, or `seeds`: the runs whose configuration differs from that of a run only in the seed."""

    key: str
    name: str
    runs: tuple[Run, ...]


def find_run_group(key: str, run: Run, visible: RunQuerySet) -> RunGroup | None:
    """Returns the group with this key in the project of `run`, newest runs first; None if it has no runs."""
    runs = visible.filter(project=run.project_id, archived_at=None).order_by("-created_at", "-pk")
    if key.startswith(TAG) and (tag := key.removeprefix(TAG)):
        members = [each for each in runs.defer("config", "facts")[:2000] if tag in each.tags]
        members.sort(key=lambda each: each.pk != run.pk)  # the page's own run is never left out
        name = tag
    elif key == SEEDS:
        members = find_repetitions(run, runs)
        name = shorten_common_name([each.name for each in members])
    else:
        return None
    return RunGroup(key, name, tuple(members[:MAX_GROUP_RUNS])) if members else None


def list_group_names(run: Run, visible: RunQuerySet) -> list[tuple[str, int]]:
    """Returns (key, number of runs) of the groups in the project of `run` with 2 or more runs."""
    counts: Counter[str] = Counter()
    runs = visible.filter(project=run.project_id, archived_at=None).order_by("-created_at")
    for tags in runs.values_list("tags", flat=True)[:2000]:
        counts.update({f"{TAG}{tag}" for tag in tags})
    groups = [(key, count) for key, count in counts.most_common(MAX_LISTED_TAGS) if count >= MIN_BAND_RUNS]
    seeds = find_run_group(SEEDS, run, visible)
    return ([(SEEDS, len(seeds.runs))] if seeds and len(seeds.runs) >= MIN_BAND_RUNS else []) + groups


def find_repetitions(run: Run, runs: RunQuerySet) -> list[Run]:
    """Returns the run itself, and those of `runs` that the run list shows as runs of the same configuration."""
    others = list(runs.exclude(pk=run.pk).filter(framework=run.framework).defer("config", "facts")[:MAX_COMPARED_RUNS])
    configs = load_run_configs([run, *others])
    own = configs[run.pk].signature
    return [run, *(each for each in others if own and configs[each.pk].signature == own)]


def shorten_common_name(names: Sequence[str]) -> str:
    """What all names begin with, without a rest such as `-s` or `-seed`."""
    first, last = min(names), max(names)
    common = next((first[:at] for at, letter in enumerate(first) if at >= len(last) or letter != last[at]), first)
    return re.sub(r"[-_. ]*(s|seed|run)?[-_. ]*$", "", common) or names[0]


def compute_group_curves(
    runs: Sequence[Run], names: Sequence[str], max_points: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Returns by name the mean of the runs that have a point at a step, `low` and `high` where there are 2 or more, and
    the number of `runs`. Each run counts with its current points."""
    result: dict[str, list[dict[str, Any]]] = {}
    for start in range(0, len(names), NAMES_AT_ONCE):
        part = names[start : start + NAMES_AT_ONCE]
        curves = load_curves(runs, part)
        for name in part:
            by_kind: dict[str, list[Curve]] = defaultdict(list)
            for run in runs:
                own: dict[str, list[Curve]] = defaultdict(list)
                for curve in curves[run.uid][name]:
                    own[curve["step_kind"]].append(curve)
                for kind, parts in own.items():
                    by_kind[kind].append(join_curves(parts))
            result[name] = [average_curves(kind, each, max_points) for kind, each in sorted(by_kind.items())]
    return result


def join_curves(curves: Sequence[Curve]) -> Curve:
    """The curves of one run as one. Attempts that run at the same time have common steps; their mean is the value."""
    if len(curves) == 1:
        return curves[0]
    steps, at = np.unique(np.concatenate([curve["steps"] for curve in curves]), return_inverse=True)
    values = np.concatenate([np.array(curve["values"], "<f8") for curve in curves])
    known = np.isfinite(values)
    count = np.bincount(at[known], minlength=len(steps))
    total = np.bincount(at[known], values[known], minlength=len(steps))
    mean = np.divide(total, count, out=np.full(len(steps), np.nan), where=count > 0)
    return {**curves[0], "steps": steps.tolist(), "values": to_list(mean)}


def average_curves(kind: str, curves: Iterable[Curve], max_points: int) -> dict[str, Any]:
    """Each curve is that of one run."""
    arrays = [(np.array(curve["steps"], "<i8"), np.array(curve["values"], "<f8")) for curve in curves]
    steps = np.unique(np.concatenate([each for each, _ in arrays]))
    total, count = np.zeros(len(steps)), np.zeros(len(steps), int)
    low, high = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    for own, values in arrays:
        known = np.isfinite(values)
        at = np.searchsorted(steps, own[known])
        total[at] += values[known]
        count[at] += 1
        low[at], high[at] = np.minimum(low[at], values[known]), np.maximum(high[at], values[known])
    mean = np.divide(total, count, out=np.full(len(steps), np.nan), where=count > 0)
    shown, _ = downsample_points((steps, mean), max_points)
    first = np.searchsorted(steps, shown)
    # A shown point has the range of all steps up to the next shown one.
    band = np.where(count >= MIN_BAND_RUNS, low, np.inf), np.where(count >= MIN_BAND_RUNS, high, -np.inf)
    lows, highs = np.minimum.reduceat(band[0], first), np.maximum.reduceat(band[1], first)
    return {
        "attempt": "", "number": 0, "step_kind": kind, "steps": shown.tolist(), "values": to_list(mean[first]),
        "low": to_list(lows), "high": to_list(highs), "runs": count[first].tolist(),
    }  # fmt: skip


def to_list(numbers: Any) -> list[float | None]:
    return [float(number) if np.isfinite(number) else None for number in numbers]
