"""The seconds of a run's steps by phase, for the timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

from rolloutdeck.trainer_api import PHASES, TimingMetrics, list_timings
from rollouts.lib import CacheSize, cached_newest
from rollouts.metrics.attempts import AttemptIndex
from rollouts.metrics.blocks import PointArrays
from rollouts.metrics.series import list_metric_names, load_points
from rollouts.models import Run

TOLERANCE = 0.02  # of a step: timers start and end at slightly different moments

Seconds = npt.NDArray[np.float64]


def find_timing(known: Collection[str]) -> TimingMetrics | None:
    """Returns the metrics of the trainer of which the run has most; None if it has no phases."""
    best = max(list_timings(), key=lambda names: (names.count_phases(known), names.has_total(known)))
    return best if best.count_phases(known) else None


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Rows are the current steps in order. `phases` has a column for each of `PHASES`, NaN where a phase was not
    recorded; the known ones add up to `total`. `has_total`: the trainer sends the seconds of the whole step. `overlap`
    is generation that went on while the trainer worked: the trainer's own time is in `phases`, with the rest of
    generation as `waiting`. `generation` is all of it."""

    step_kind: str
    has_total: bool
    steps: npt.NDArray[np.int64]
    total: Seconds
    phases: Seconds
    generation: Seconds
    overlap: Seconds

    def __len__(self) -> int:
        return len(self.steps)

    def find_row(self, step: int) -> int | None:
        row = int(np.searchsorted(self.steps, step))
        return row if row < len(self.steps) and int(self.steps[row]) == step else None

    def column(self, phase: str) -> Seconds:
        values: Seconds = self.phases[:, PHASES.index(phase)]
        return values

    @property
    def slowest(self) -> int:
        """The row of the slowest step."""
        return int(np.argmax(self.total))

    def shares(self) -> dict[str, float]:
        """Returns {phase: share of the seconds of all steps}, without phases that were never recorded."""
        sums = np.nansum(self.phases, axis=0)
        total = float(self.total.sum()) or 1.0
        return {name: float(sums[PHASES.index(name)]) / total for name in self.recorded_phases()}

    def recorded_phases(self) -> list[str]:
        return [name for name, column in zip(PHASES, self.phases.T, strict=True) if not np.isnan(column).all()]


def load_step_times(run: Run) -> StepTimes | None:
    """Returns the times of the current steps; None if the run sends no phases."""
    return load_cached_step_times(run.pk, run.created_at, run.version)


@cached_newest(CacheSize.STEP_TIMES)
def load_cached_step_times(run_id: int, created_at: datetime, version: int) -> StepTimes | None:
    """The version rises with every visible change, so it names the content."""
    run = Run.objects.get(pk=run_id)
    known = set(list_metric_names(run))
    names = find_timing(known)
    if names is None:
        return None
    attempts = AttemptIndex.load([run_id])
    columns: dict[tuple[str, str], PointArrays] = {}
    for (_, name, kind), pieces in load_points([run_id], names.list_names(known), newest=False).items():
        current = [points for _, points in attempts.select(pieces, kind, "current") if len(points[0])]
        if current:
            columns[name, kind] = join_pieces(current)
    return build_step_times(names, columns)


def join_pieces(pieces: list[PointArrays]) -> PointArrays:
    """Returns the points of all attempts in step order. Of several values for a step, the last is used."""
    steps, values = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    last = len(steps) - 1 - np.unique(steps[::-1], return_index=True)[1]
    return steps[last], values[last]


def build_step_times(names: TimingMetrics, columns: dict[tuple[str, str], PointArrays]) -> StepTimes | None:
    """Builds the table from {(metric, step kind): points}, on the step kind of most phases."""
    counts: Counter[str] = Counter()
    for (_, kind), points in columns.items():
        counts[kind] += len(points[0])
    if not counts:
        return None
    step_kind = counts.most_common(1)[0][0]
    own = {name: points for (name, kind), points in columns.items() if kind == step_kind}
    steps = np.unique(np.concatenate([points[0] for points in own.values()]))
    values = {name: align_values(steps, points) for name, points in own.items()}
    phases = np.full((len(steps), len(PHASES)), np.nan)
    for name, phase in names.phases.items():
        if name in values:
            is_wait = phase == "generation" and step_kind in names.queue_kinds
            at = PHASES.index("waiting" if is_wait else phase)
            phases[:, at] = add_known(phases[:, at], values[name])
    total = np.full(len(steps), np.nan)
    for name in names.total:
        if name in values and names.late_total not in values:
            total = np.where(np.isnan(total), values[name], total)
    outside = names.outside | ({"checkpoint"} if names.checkpoint_after & values.keys() else set())
    return fill_rest(outside, step_kind, steps, total, phases)


def add_known(left: Seconds, right: Seconds) -> Seconds:
    """Returns the sums; NaN only where both are."""
    sums: Seconds = np.where(np.isnan(left), right, left + np.nan_to_num(right))
    return sums


def align_values(steps: npt.NDArray[np.int64], points: PointArrays) -> Seconds:
    """Returns a value for each step, NaN where there is none or it is not a duration."""
    own_steps, own_values = points
    result = np.full(len(steps), np.nan)
    valid = np.isfinite(own_values) & (own_values >= 0)
    result[np.searchsorted(steps, own_steps[valid])] = own_values[valid]
    return result


def fill_rest(
    outside: Collection[str], step_kind: str, steps: npt.NDArray[np.int64], total: Seconds, phases: Seconds
) -> StepTimes | None:
    """Computes `other` and the overlap, and leaves out steps of which nothing is known. `outside`: phases that the
    total does not contain yet."""
    has_total = bool(np.isfinite(total).any())
    total = total + np.nansum(phases[:, [PHASES.index(phase) for phase in outside]], axis=1)
    sums = np.nansum(phases, axis=1)
    generation = phases[:, PHASES.index("generation")].copy()
    total = np.where(np.isnan(total), np.where(sums > 0, sums, np.nan), total)
    excess = np.where(sums > total * (1 + TOLERANCE), sums - total, 0.0)
    overlap = np.minimum(excess, np.nan_to_num(generation))
    overlaps = overlap > 0
    waiting, gen = PHASES.index("waiting"), PHASES.index("generation")
    rest = np.nan_to_num(generation) - overlap
    phases[overlaps, waiting] = np.nan_to_num(phases[overlaps, waiting]) + rest[overlaps]
    phases[overlaps, gen] = np.nan
    sums = np.nansum(phases, axis=1)
    total = np.maximum(total, sums)  # timers that lie in each other
    other = total - sums
    phases[:, PHASES.index("other")] = np.where(other > total * TOLERANCE / 10, other, np.nan)
    known = np.isfinite(total)
    if not known.any():
        return None
    return StepTimes(step_kind, has_total, steps[known], total[known], phases[known], generation[known], overlap[known])


@dataclass(frozen=True, slots=True)
class TimeBin:
    """One column of the chart: a step, or neighbouring ones. `row` is the step of median duration, whose phases are
    drawn, `slowest` the slowest one."""

    first: int
    last: int
    row: int
    slowest: int


def bin_step_times(times: StepTimes, max_bins: int) -> list[TimeBin]:
    """Returns at most `max_bins` columns of equally many steps."""
    edges = np.linspace(0, len(times), min(len(times), max_bins) + 1).astype(int)
    bins = []
    for start, end in zip(edges, edges[1:], strict=False):
        order = np.argsort(times.total[start:end], kind="stable")
        bins.append(
            TimeBin(int(start), int(end) - 1, int(start + order[(len(order) - 1) // 2]), int(start + order[-1]))
        )
    return bins
