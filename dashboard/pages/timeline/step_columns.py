"""The columns of the charts of the timeline, on the x-scale of the page's strip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.pages.common import StepScale, StepStrip, space_ticks
from rollouts.metrics import StepTimes, TimeBin, bin_step_times

MAX_COLUMNS = 240
TICK_DISTANCE = 9.0  # percent


@dataclass(frozen=True, slots=True)
class StepColumn:
    """A step, or neighbouring ones: the rows of `bin`, the steps `first` to `last`. `x width` are in percent."""

    bin: TimeBin
    first: int
    last: int
    x: float
    width: float

    @property
    def center(self) -> float:
        return round(self.x + self.width / 2, 3)

    def has_row(self, row: int) -> bool:
        return self.bin.first <= row <= self.bin.last


def find_step_scale(times: StepTimes | None, strip: StepStrip, strip_kind: str) -> tuple[StepScale | None, bool]:
    """Returns the scale of the charts, and whether the strip shares it: it does not if it counts another kind of
    steps."""
    bars = strip.list_steps()
    if times is None:
        return StepScale.from_steps(bars), True
    if times.step_kind != strip_kind and bars:
        return StepScale.from_steps(times.steps.tolist()), False
    return StepScale.from_steps(bars, times.steps.tolist()), True


def build_step_columns(times: StepTimes, scale: StepScale) -> list[StepColumn]:
    gap = scale.find_gap_of(times.steps.tolist())
    columns = []
    for each in bin_step_times(times, MAX_COLUMNS):
        first, last = int(times.steps[each.first]), int(times.steps[each.last])
        columns.append(StepColumn(each, first, last, *scale.box(first, last, gap)))
    return columns


def find_ticks(columns: Sequence[StepColumn]) -> list[tuple[float, int]]:
    """[(percent from the left, step)], as many as have room."""
    return space_ticks([(column.center, column.first) for column in columns], TICK_DISTANCE)
