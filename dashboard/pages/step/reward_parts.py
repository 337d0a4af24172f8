"""The reward parts as columns of the table: which there are, which are shown, and the links that choose others."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dashboard.pages.common import StepUrlState
from rollouts.models import SampleQuerySet

MAX_READ_SAMPLES = 500  # whose parts are compared
MAX_DEFAULT_PARTS = 4
MAX_REWARD = 100  # larger values are rather lengths and times than rewards
NO_PARTS = "-"


@dataclass(frozen=True, slots=True)
class RewardParts:
    """`names` are all parts; `default` are those that vary and do not repeat the score, at most four."""

    names: tuple[str, ...]
    default: tuple[str, ...]

    def select(self, url_state: StepUrlState) -> list[str]:
        """The shown parts, in the order of the run."""
        if not url_state.parts:
            return list(self.default)
        chosen = url_state.parts.split(",")
        return [name for name in self.names if name.replace(",", " ") in chosen]


@dataclass(frozen=True, slots=True)
class PartChoice:
    """`link` shows or hides the part."""

    name: str
    on: bool
    link: str


def find_reward_parts(samples: SampleQuerySet) -> RewardParts:
    """The parts of a step, from some of its samples. Rewards come before other numbers."""
    rows = samples.order_by().exclude(parts=None).values_list("parts", "score")[:MAX_READ_SAMPLES]
    return choose_parts(list(rows))


def choose_parts(rows: list[tuple[Any, float | None]]) -> RewardParts:
    values: dict[str, list[float]] = {}
    repeats_score: dict[str, bool] = {}
    for parts, score in rows:
        for name, value in (parts or {}).items():
            if value is not None:
                values.setdefault(name, []).append(value)
                repeats_score[name] = repeats_score.get(name, True) and value == score
    varying = [name for name, own in values.items() if min(own) != max(own) and not repeats_score[name]]
    varying.sort(key=lambda name: max(map(abs, values[name])) > MAX_REWARD)
    return RewardParts(tuple(values), tuple(varying[:MAX_DEFAULT_PARTS]))


def build_part_choices(parts: RewardParts, url_state: StepUrlState) -> list[PartChoice]:
    shown = parts.select(url_state)
    return [PartChoice(name, name in shown, toggle_part_link(parts, shown, name, url_state)) for name in parts.names]


def toggle_part_link(parts: RewardParts, shown: Iterable[str], name: str, url_state: StepUrlState) -> str:
    chosen = [other for other in parts.names if (other in shown) != (other == name)]
    value = ",".join(other.replace(",", " ") for other in chosen) or NO_PARTS
    if tuple(chosen) == parts.default or set(chosen) == set(parts.default):
        value = ""
    return url_state.link(parts=value, sel="") or "?"
