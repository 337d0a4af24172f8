"""When the points of curves were logged: hours since the run's first told moment, by the trainer's own clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rollouts.metrics import series
from rollouts.metrics.blocks import TIME_METRIC
from rollouts.metrics.series import Curve
from rollouts.models import Run

HOUR: Final = 3600.0

Curves = Mapping[str, Sequence[Curve]]


def add_time_axis(runs: Sequence[Run], curves: Mapping[str, Curves]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The curves by run uid and name, each with `hours` beside its `steps`. A point between two told moments lies
    between them, one outside of them at the nearest; a curve of an attempt or a kind of step that no moment was told
    of is left out."""
    clocks = series.load_curves(runs, [TIME_METRIC], attempt="all")
    return {run.uid: of_run(clocks[run.uid][TIME_METRIC], curves[run.uid]) for run in runs}


def of_run(clock: Sequence[Curve], curves: Curves) -> dict[str, list[dict[str, Any]]]:
    moments = {(one["attempt"], one["step_kind"]): points(one) for one in clock}
    began = min((float(values.min()) for _, values in moments.values() if len(values)), default=0.0)
    out: dict[str, list[dict[str, Any]]] = {}
    for name, found in curves.items():
        out[name] = [
            {**curve, "hours": hours(curve["steps"], *moments[place], began)}
            for curve in found
            if len(moments.get(place := (curve["attempt"], curve["step_kind"]), ((),))[0])
        ]
    return out


def points(clock: Curve) -> tuple[Any, Any]:
    told = [(step, value) for step, value in zip(clock["steps"], clock["values"], strict=True) if value is not None]
    steps = np.array([step for step, _ in told], np.float64)
    # A clock that was set back would draw a line to the left.
    return steps, np.maximum.accumulate(np.array([value for _, value in told], np.float64))


def hours(steps: Sequence[int], known: Any, moments: Any, began: float) -> list[float]:
    found: list[float] = np.round((np.interp(steps, known, moments) - began) / HOUR, 5).tolist()
    return found
