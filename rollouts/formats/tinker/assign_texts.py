"""Assigns the logged texts of a group to its trajectories, by index, by reward and by length."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rollouts.formats.readers import JsonObject, chat
from rollouts.formats.tinker.trajectory_key import TrajectoryNumbers, Turn
from rollouts.samples import to_float, to_integer

TOLERANCE = 0.0051  # logged rewards have two or three decimals


@dataclass(slots=True)
class LoggedText:
    """A prompt and an answer that an environment logged, and the values that it logged after them.

    index: the index of its trajectory, if the file states it. reward: its own reward.
    """

    prompt: list[JsonObject]
    answer: list[JsonObject]
    index: int | None
    values: dict[str, str] = field(default_factory=dict)
    reward: float | None = None


@dataclass(slots=True)
class LoggedTrajectory:
    """The numbers of a trajectory: its turns, the reward that its group added, its total reward, its metrics."""

    index: int
    turns: list[Turn] = field(default_factory=list)
    group_reward: str = ""
    total: float | None = None
    metrics: dict[str, str] = field(default_factory=dict)

    def add_turn(self, table: dict[str, str]) -> None:
        lengths = [to_integer(to_float(table.get(key))) or 0 for key in ("ob_len", "ac_len")]
        self.turns.append((lengths[0], lengths[1], table["step_reward"]))

    def set_totals(self, table: dict[str, str]) -> None:
        self.group_reward, self.total = table.get("final_group_reward", ""), to_float(table.get("total_return"))

    @property
    def numbers(self) -> TrajectoryNumbers:
        return self.turns, self.group_reward

    @property
    def own_reward(self) -> float:
        """The sum of the rewards of its turns, which its environment knows."""
        return round(sum(to_float(reward) or 0.0 for _, _, reward in self.turns), 6)

    @property
    def length(self) -> int:
        return sum(length for _, length, _ in self.turns)


def assign_texts(
    texts: Sequence[LoggedText], trajectories: Sequence[LoggedTrajectory]
) -> Iterator[tuple[LoggedText, LoggedTrajectory | None]]:
    """Yields each text with its trajectory; None if it cannot be known. A trajectory gets at most one text."""
    by_index = {trajectory.index: trajectory for trajectory in trajectories if trajectory.turns}
    if any(text.index is not None for text in texts):
        for text in texts:
            yield text, by_index.pop(text.index, None) if text.index is not None else None
        return
    rewards = {trajectory.own_reward for trajectory in by_index.values()}
    if len(rewards) == 1:  # whichever is whose, the rewards are the same
        yield from pair_by_length(texts, list(by_index.values()))
        return
    groups: dict[float, list[LoggedText]] = defaultdict(list)
    for text in texts:
        nearest = min(rewards, key=lambda reward: abs(reward - (text.reward or 0.0)), default=None)
        if text.reward is None or nearest is None or abs(nearest - text.reward) > TOLERANCE:
            yield text, None
        else:
            groups[nearest].append(text)
    for reward, members in groups.items():
        same = [trajectory for trajectory in by_index.values() if trajectory.own_reward == reward]
        yield from pair_by_length(members, same)


def pair_by_length(
    texts: Sequence[LoggedText], trajectories: Sequence[LoggedTrajectory]
) -> Iterator[tuple[LoggedText, LoggedTrajectory | None]]:
    """Pairs the longest text with the trajectory that has the most tokens, if there are as many of both."""
    if len(texts) != len(trajectories):
        yield from ((text, None) for text in texts)
        return
    by_length = sorted(texts, key=lambda text: len(chat.render_response(text.answer).encode()))
    yield from zip(by_length, sorted(trajectories, key=lambda trajectory: trajectory.length), strict=True)
