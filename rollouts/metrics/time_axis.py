"""The time axis of curves: hours since the first logged time of the run, by the trainer's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rollouts.metrics import series
from rollouts.metrics.blocks import TIME_METRIC
from rollouts.metrics.series import Curve
from rollouts.models import Run

SECONDS_PER_HOUR: Final = 3600.0

Curves = Mapping[str, Sequence[Curve]]


def add_time_axis(runs: Sequence[Run], curves: Mapping[str, Curves]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Returns the curves by run uid and name, with `hours` in addition to `steps`.

    The time of a point is interpolated between logged times. Before the first and after the last one it is theirs. A
    curve without any logged time of its attempt and step kind is left out.
    """
    clocks = series.load_curves(runs, [TIME_METRIC], attempt="all")
    return {run.uid: add_hours(clocks[run.uid][TIME_METRIC], curves[run.uid]) for run in runs}


def add_hours(clock: Sequence[Curve], curves: Curves) -> dict[str, list[dict[str, Any]]]:
    times = {}
    for piece in clock:
        known = [pair for pair in zip(piece["steps"], piece["values"], strict=True) if pair[1] is not None]
        if known:
            steps, seconds = np.array(known, np.float64).T
            # If the clock was set back, the line would go to the left.
            times[piece["attempt"], piece["step_kind"]] = steps, np.maximum.accumulate(seconds)
    start = min((float(seconds.min()) for _, seconds in times.values()), default=0.0)
    result: dict[str, list[dict[str, Any]]] = {}
    for name, pieces in curves.items():
        result[name] = []
        for curve in pieces:
            if axis := times.get((curve["attempt"], curve["step_kind"])):
                hours = np.round((np.interp(curve["steps"], *axis) - start) / SECONDS_PER_HOUR, 5)
                result[name].append({**curve, "hours": hours.tolist()})
    return result
