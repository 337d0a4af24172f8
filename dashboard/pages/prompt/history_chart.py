"""The bars of a prompt's history: a row for each run, all on one axis of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.translation import gettext as _

from dashboard.pages.common import format_number
from dashboard.pages.prompt.url_state import PromptUrlState
from rollouts.prompts import PromptRunHistory, PromptStepStats

MAX_CHART_BARS = 160


@dataclass(frozen=True, slots=True)
class HistoryBar:
    """One step, or neighbouring ones put together, of which the last is opened. `x width height y` in per cent."""

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
    line: PromptRunHistory
    link: str
    bars: list[HistoryBar]
    own: bool


@dataclass(frozen=True, slots=True)
class HistoryScale:
    """The axes that all lines share: steps `low` to `high` in `slots` places, scores from `bottom` on over `span`."""

    low: int
    high: int
    slots: int
    bottom: float
    span: float

    @classmethod
    def of(cls, lines: Sequence[PromptRunHistory]) -> HistoryScale:
        steps = sorted({one.step for line in lines for one in line.steps})
        means = [one.mean for line in lines for one in line.steps if one.mean is not None]
        bottom, top = min([0.0, *means]), max([0.0, *means])
        gap = min((late - early for early, late in zip(steps, steps[1:], strict=False)), default=1)
        slots = min(MAX_CHART_BARS, (steps[-1] - steps[0]) // gap + 1)
        return cls(steps[0], steps[-1], slots, bottom, (top - bottom) or 1.0)

    def slot(self, step: int) -> int:
        return (step - self.low) * (self.slots - 1) // max(1, self.high - self.low)

    def height(self, mean: float | None) -> float:
        return 0.0 if mean is None else round(8 + 92 * (mean - self.bottom) / self.span, 2)


def build_history_rows(
    lines: Sequence[PromptRunHistory],
    chosen: PromptRunHistory | None,
    here: PromptStepStats | None,
    look: PromptUrlState,
    key: str,
) -> list[HistoryRow]:
    """Every line with its bars. A bar of the run itself opens its step; one of another run opens that run's page at
    that step, with the answer that was chosen still beside it."""
    if not lines:
        return []
    scale = HistoryScale.of(lines)
    own = chosen.run if chosen else None
    return [
        build_history_row(line, scale, line.run == own, here if line is chosen else None, look, key) for line in lines
    ]


def build_history_row(
    line: PromptRunHistory, scale: HistoryScale, own: bool, here: PromptStepStats | None, look: PromptUrlState, key: str
) -> HistoryRow:
    attempt = line.attempt.key if line.attempt else ""
    there = "" if own else reverse("prompt", args=[line.run.uid, key])
    kept = look.vs if own else look.sel or look.vs
    slots: dict[int, list[PromptStepStats]] = {}
    for one in line.steps:
        slots.setdefault(scale.slot(one.step), []).append(one)
    bars = [
        build_history_bar(
            steps, slot, scale, there + look.link(attempt=attempt, at=str(steps[-1].step), sel="", vs=kept), here
        )
        for slot, steps in slots.items()
    ]
    return HistoryRow(line, (there + look.link(attempt=attempt, at="", sel="", vs=kept)) or "?", bars, own)


def build_history_bar(
    steps: list[PromptStepStats], slot: int, scale: HistoryScale, link: str, here: PromptStepStats | None
) -> HistoryBar:
    scored = [one for one in steps if one.mean is not None]
    total = sum(one.answers for one in scored)
    mean = sum((one.mean or 0.0) * one.answers for one in scored) / total if total else None
    right, judged, count = (sum(getattr(one, name) for one in steps) for name in ("correct", "evaluated", "answers"))
    width = 100 / scale.slots
    first, last = steps[0].step, steps[-1].step
    title = format_bar_title(first, last, mean, count) + (
        " · " + _("{count} correct").format(count=right) if judged else ""
    )
    grade = "plain" if not judged else "good" if right == judged else "partial" if right else "bad"
    inside = here is not None and first <= here.step <= last
    return HistoryBar(link, title, grade, round(slot * width, 3), round(width, 3), scale.height(mean), inside)


def format_bar_title(first: int, last: int, mean: float | None, count: int) -> str:
    steps = _("step {step}").format(step=last)
    if first != last:
        steps = _("steps {first} to {last}").format(first=first, last=last)
    if mean is None:
        return _("{steps} · responses: {count}").format(steps=steps, count=count)
    return _("{steps} · mean {mean} · responses: {count}").format(steps=steps, mean=format_number(mean), count=count)
