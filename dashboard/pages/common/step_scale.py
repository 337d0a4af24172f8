"""The x-scale that all strips of a page share: a step has the same position in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepScale:
    """The steps `first` to `last`, with half of `gap` on either side. `gap` is the smallest distance of two steps."""

    first: int
    last: int
    gap: int = 1

    @classmethod
    def from_steps(cls, *strips: Sequence[int]) -> StepScale | None:
        """Returns the scale of the sorted steps of some strips; None if there is no step."""
        ends = [end for steps in strips if steps for end in (steps[0], steps[-1])]
        if not ends:
            return None
        gaps = [after - before for steps in strips for before, after in zip(steps, steps[1:], strict=False)]
        return cls(min(ends), max(ends), min((gap for gap in gaps if gap > 0), default=1))

    def box(self, first: int, last: int) -> tuple[float, float]:
        """Returns the left edge and the width of the steps `first` to `last` in percent."""
        total = self.last - self.first + self.gap
        return round(100 * (first - self.first) / total, 3), round(100 * (last - first + self.gap) / total, 3)

    def center(self, step: int) -> float:
        left, width = self.box(step, step)
        return round(left + width / 2, 3)
