"""Names a trajectory by the numbers that both the summaries and the texts of a step have of its group.

No file has an id of a group, and the two number the groups differently. Both have, for each trajectory of a group, the
lengths and rewards of its turns. The rewards have three decimals in the texts.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

from rollouts.samples import to_json

GROUP_CHARS = 12

Turn = tuple[int, int, str]  # length of the observation and of the action in tokens, reward with three decimals
TrajectoryNumbers = tuple[Sequence[Turn], str]  # its turns, the reward that its group gave it


class GroupNamer:
    """Names groups. Groups with equal numbers are counted: `3f2a…`, `3f2a….1`."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def name_group(self, trajectories: Sequence[TrajectoryNumbers]) -> str:
        numbers = [[[list(turn) for turn in turns], reward] for turns, reward in trajectories]
        name = hashlib.sha256(to_json(numbers).encode()).hexdigest()[:GROUP_CHARS]
        count = self.seen[name]
        self.seen[name] += 1
        return f"{name}.{count}" if count else name


def format_reward(value: float | None) -> str:
    """Returns a reward as the texts show it; empty if it is unknown."""
    return "" if value is None else f"{value:.3f}"
