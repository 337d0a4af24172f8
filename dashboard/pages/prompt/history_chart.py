"""The bars of a prompt's history: a row for each run or attempt, all on one axis of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard.pages.common import format_number
from dashboard.pages.prompt.url_state import PromptUrlState
from rollouts.prompts import PromptRunHistory, PromptStepStats

MAX_CHART_BARS = 160


@dataclass(frozen=True, slots=True)
class HistoryBar:
    """One step, or neighbouring steps, of which the link opens the last. `x width height y` are in percent."""

    link: str
    title: str
    grade: str
    x: float
    width: float
    height: float
    here: bool

    @property
    def y(self) -> float:
        return round(100 - self.height, 2)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """`own`: the history is of the page's run."""

    history: PromptRunHistory
    link: str
    bars: list[HistoryBar]
    own: bool


@dataclass(frozen=True, slots=True)
class HistoryScale:
    """The axes of all rows: steps `low` to `high` in `slots` slots, scores from `bottom` to `bottom + span`."""

    low: int
    high: int
    slots: int
    bottom: float
    span: float

    @classmethod
    def from_histories(cls, histories: Sequence[PromptRunHistory]) -> HistoryScale:
        steps = sorted({stats.step for history in histories for stats in history.steps})
        means = [stats.mean for history in histories for stats in history.steps if stats.mean is not None]
        bottom, top = min([0.0, *means]), max([0.0, *means])
        gap = min((after - before for before, after in pairwise(steps)), default=1)
        slots = min(MAX_CHART_BARS, (steps[-1] - steps[0]) // gap + 1)
        return cls(steps[0], steps[-1], slots, bottom, (top - bottom) or 1.0)

    def slot(self, step: int) -> int:
        return (step - self.low) * (self.slots - 1) // max(1, self.high - self.low)

    def height(self, mean: float | None) -> float:
        return 0.0 if mean is None else round(8 + 92 * (mean - self.bottom) / self.span, 2)


def build_history_rows(
    histories: Sequence[PromptRunHistory],
    chosen: PromptRunHistory | None,
    here: PromptStepStats | None,
    url_state: PromptUrlState,
    key: str,
) -> list[HistoryRow]:
    """A bar of the page's run opens its step. A bar of another run opens the prompt's page of that run at its step,
    with the selected answer as the second one."""
    if not histories:
        return []
    scale = HistoryScale.from_histories(histories)
    rows: list[HistoryRow] = []
    for history in histories:
        own = chosen is not None and history.run == chosen.run
        path = "" if own else reverse("prompt", args=[history.run.uid, key])
        attempt = history.attempt.key if history.attempt else ""
        state = replace(url_state, attempt=attempt, sel="", vs=url_state.vs if own else url_state.sel or url_state.vs)
        slots: dict[int, list[PromptStepStats]] = {}
        for stats in history.steps:
            slots.setdefault(scale.slot(stats.step), []).append(stats)
        bars = [
            build_history_bar(
                steps, slot, scale, path + state.link(at=str(steps[-1].step)), here if history is chosen else None
            )
            for slot, steps in slots.items()
        ]
        rows.append(HistoryRow(history, path + state.link(at="") or "?", bars, own))
    return rows


def build_history_bar(
    steps: list[PromptStepStats], slot: int, scale: HistoryScale, link: str, here: PromptStepStats | None
) -> HistoryBar:
    scored = [(stats.mean, stats.answers) for stats in steps if stats.mean is not None]
    total = sum(answers for _mean, answers in scored)
    mean = sum(mean * answers for mean, answers in scored) / total if total else None
    correct, evaluated, count = (
        sum(getattr(stats, name) for stats in steps) for name in ("correct", "evaluated", "answers")
    )
    first, last = steps[0].step, steps[-1].step
    title = format_bar_title(first, last, mean, count)
    title += " · " + _("{count} correct").format(count=correct) if evaluated else ""
    grade = "plain" if not evaluated else "good" if correct == evaluated else "partial" if correct else "bad"
    width = 100 / scale.slots
    is_here = here is not None and first <= here.step <= last
    return HistoryBar(link, title, grade, round(slot * width, 3), round(width, 3), scale.height(mean), is_here)


def format_bar_title(first: int, last: int, mean: float | None, count: int) -> str:
    steps = _("step {step}").format(step=last)
    if first != last:
        steps = _("steps {first} to {last}").format(first=first, last=last)
    if mean is None:
        return _("{steps} · responses: {count}").format(steps=steps, count=count)
    return _("{steps} · mean {mean} · responses: {count}").format(steps=steps, mean=format_number(mean), count=count)
