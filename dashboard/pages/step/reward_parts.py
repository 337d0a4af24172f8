"""Reward parts and re-scores as columns of the table: which there are, which are shown, and the links that choose
others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dashboard.pages.common import StepUrlState
from rollouts.models import Rescore, SampleQuerySet, Step
from rollouts.query import PART_PREFIX, RESCORE_PREFIX

MAX_READ_SAMPLES = 500  # whose parts are compared
MAX_SCANNED_SAMPLES = 5000  # if the first have no parts; a filter would read all samples of a run without any
MAX_DEFAULT_PARTS = 4
MAX_DEFAULT_RESCORES = 2  # the newest
MAX_REWARD = 100  # larger values are rather lengths and times than rewards
NO_PARTS = "-"


@dataclass(frozen=True, slots=True)
class RewardParts:
    """`names` are all parts; `default` are those that vary and do not repeat the score, at most four. `rescores` are
    {name: key} of the re-scores among the names."""

    names: tuple[str, ...]
    default: tuple[str, ...]
    rescores: dict[str, str] = field(default_factory=dict)

    def select(self, url_state: StepUrlState) -> list[str]:
        """The shown parts, in the order of the run."""
        if not url_state.parts:
            return list(self.default)
        chosen = url_state.parts.split(",")
        return [name for name in self.names if name.replace(",", " ") in chosen]

    def with_rescores(self, rescores: Sequence[Rescore], step: Step | None) -> "RewardParts":
        """Adds the re-scores in front: those with results of the step, or all without one."""
        used = [row for row in rescores if step is None or row.key in (step.rescores or {})]
        columns = {name: key for row in used for name, key in row.list_columns().items() if name not in self.names}
        shown = [row.name for row in used[:MAX_DEFAULT_RESCORES] if row.name in columns]
        return replace(self, names=(*columns, *self.names), default=(*shown, *self.default), rescores=columns)

    def build_columns(self, url_state: StepUrlState) -> list[str]:
        """The shown columns, as `render_sample_rows` reads them."""
        return [
            f"{RESCORE_PREFIX}{self.rescores[name]}={name}" if name in self.rescores else f"{PART_PREFIX}{name}"
            for name in self.select(url_state)
        ]


@dataclass(frozen=True, slots=True)
class PartChoice:
    """`link` shows or hides the part."""

    name: str
    on: bool
    link: str


def find_reward_parts(samples: SampleQuerySet) -> RewardParts:
    """The parts of a step, from some of its samples. Rewards come before other numbers."""
    rows = samples.order_by().values_list("parts", "score")
    chosen = list(rows[:MAX_READ_SAMPLES])
    if len(chosen) == MAX_READ_SAMPLES and not any(parts for parts, _score in chosen):
        chosen = [row for row in rows[:MAX_SCANNED_SAMPLES] if row[0]][:MAX_READ_SAMPLES]
    return choose_parts(chosen)


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
