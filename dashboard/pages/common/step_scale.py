"""The x-scale that all strips of a page share: a step has the same position in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MIN_STEPS = 8  # a scale has room for at least so many, so that the steps of a short run are not drawn very wide
MIN_TICK_DISTANCE = 6.0  # percent


@dataclass(frozen=True, slots=True)
class StepScale:
    """The steps `first` to `last`, with `margin` steps on either side. `gap` is the smallest distance of two steps."""

    first: int
    last: int
    gap: int = 1
    margin: float = 0.5

    @classmethod
    def from_steps(cls, *strips: Sequence[int]) -> StepScale | None:
        """Returns the scale of the sorted steps of some strips; None if there is no step."""
        filled = [steps for steps in strips if steps]
        if not filled:
            return None
        gap = min((gap for steps in filled if (gap := find_gap(steps))), default=1)
        scale = cls(min(steps[0] for steps in filled), max(steps[-1] for steps in filled), gap)
        margins = [
            scale.find_gap_of(steps) / 2 - min(steps[0] - scale.first, scale.last - steps[-1]) for steps in filled
        ]
        return cls(scale.first, scale.last, gap, max(*margins, gap / 2))

    def find_gap_of(self, steps: Sequence[int]) -> int:
        """The distance between the steps of one strip, for the width of its bars."""
        return min(find_gap(steps) or self.gap, max(self.gap, (self.last - self.first) // MIN_STEPS))

    def box(self, first: int, last: int, gap: int = 0) -> tuple[float, float]:
        """Returns the left edge and the width of the steps `first` to `last` in percent. `gap` is the distance between
        the steps of their strip, if it is not that of the scale."""
        total = self.last - self.first + 2 * self.margin
        left = first - (gap or self.gap) / 2 - self.first + self.margin
        return round(100 * left / total, 3), round(100 * (last - first + (gap or self.gap)) / total, 3)

    def center(self, step: int) -> float:
        left, width = self.box(step, step)
        return round(left + width / 2, 3)


def find_gap(steps: Sequence[int]) -> int:
    """The smallest distance between two of the sorted steps; 0 if there are not two."""
    return min((after - before for before, after in pairwise(steps) if after > before), default=0)


def space_ticks(ticks: Sequence[tuple[float, int]], distance: float = MIN_TICK_DISTANCE) -> list[tuple[float, int]]:
    """Leaves out labels, (x in percent, step), that are closer than `distance` to the one before."""
    kept: list[tuple[float, int]] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= distance:
            kept.append(tick)
    return kept
