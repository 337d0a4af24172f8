"""What a plan would do: step by step, and where its pins do not fit the run that it is held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.pages.common import status_strip
from dashboard.pages.common.status_strip import Cell, Track
from dashboard.pages.pins.plan_draft import Draft
from rolloutdeck.protocol import compatibility, schedule
from rolloutdeck.protocol.compatibility import Difference
from rollouts.replay.compatibility import Judged

MOST_STEPS = 10_000
BEHIND = 4  # steps to show after the last target, so that what comes then is seen
FEWEST = 12
LONGEST = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """`end` is the step at which a trainer that generates nothing ends; None for one that generates."""

    track: Track
    replays: int
    generates: int
    refuses: int
    end: int | None = None

    @property
    def said(self) -> str:
        """For those who do not see the strip."""
        if self.end is not None:
            said = _("Steps replayed: {replays}. The run ends at step {end}, which has nothing to load.")
            return said.format(replays=self.replays, end=self.end)
        said = ngettext(
            "The run replays {replays} step, generates {generates}.",
            "The run replays {replays} steps, generates {generates}.",
            self.replays,
        )
        if self.refuses:
            said = ngettext(
                "The run replays {replays} step, generates {generates}, would refuse {refuses}.",
                "The run replays {replays} steps, generates {generates}, would refuse {refuses}.",
                self.replays,
            )
        return said.format(replays=self.replays, generates=self.generates, refuses=self.refuses)


def outcome(
    draft: Draft, first: int, steps: int, names: Mapping[int, str], refused: Mapping[int, str], *, alone: bool = False
) -> Outcome:
    """Of the steps `first` to `steps`. `names` by pin; `refused` by pin: why the run would not replay it; `alone`: the
    trainer generates nothing."""
    pins = {step: pin for pin, step in reversed(draft.entries)}
    drawn = [
        cell(step, target, pins, names, refused, draft.on_mismatch)
        for step, target in schedule.strip(draft.action, list(pins), range(first, steps + 1))
    ]
    end = next((one.first for one in drawn if one.word != "hit"), None) if alone else None
    if end is not None:
        drawn = [one if one.first < end else beyond(one.first, end) for one in drawn]
    count = {word: sum(one.word == word for one in drawn) for word in status_strip.HEIGHTS}
    return Outcome(status_strip.track(drawn), count["hit"], count["none"], count["refused"], end)


def beyond(step: int, end: int) -> Cell:
    said = _("step {step}: nothing to load, the run ends here")
    if step > end:
        said = _("step {step}: not reached, the run ends at step {end}")
    return Cell(step, step, "none", said.format(step=step, end=end))


def cell(
    step: int,
    target: int | None,
    pins: Mapping[int, int],
    names: Mapping[int, str],
    refused: Mapping[int, str],
    on_mismatch: str,
) -> Cell:
    if target is None:
        return Cell(step, step, "none", _("step {step}: generates and records").format(step=step))
    pin = pins[target]
    told = _("step {step}: replays {pin}")
    if target != step:
        told = _("step {step}: replays {pin}, the pin of step {target}")
    title = told.format(step=step, pin=names.get(pin) or _("a pin"), target=target)
    if why := refused.get(pin):
        said = _("{title}: would be refused ({why}), generates instead")
        if on_mismatch == "stop":
            said = _("{title}: would be refused ({why}), the run stops")
        return Cell(step, step, "refused", said.format(title=title, why=why))
    return Cell(step, step, "hit", title)


def steps_to_show(asked: str, draft: Draft, run_steps: int | None) -> int:
    """What the page was asked for; else to the end of the run it is held against, or a little past the last target."""
    if asked.isascii() and asked.isdigit() and len(asked) < 9 and int(asked):
        return min(int(asked), MOST_STEPS)
    last = max(draft.targets, default=0)
    return min(max(last + BEHIND, run_steps or 0, FEWEST), MOST_STEPS)


@dataclass(slots=True)
class Line:
    """A difference, and the target steps whose pins have it."""

    fact: str
    verdict: str
    pinned: str
    asking: str
    loosened: bool
    targets: list[int] = field(default_factory=list)

    @property
    def steps(self) -> str:
        return ", ".join(map(str, self.targets[:6])) + (" …" if len(self.targets) > 6 else "")


def together(draft: Draft, found: Mapping[int, Judged]) -> list[Line]:
    """Equal differences of several entries in one line, refusals first."""
    lines: dict[tuple[str, str, str, str], Line] = {}
    for pin, step in sorted(draft.entries, key=lambda entry: entry[1]):
        for one in known(found.get(pin)):
            shown = (one.fact, one.verdict, value(one.pinned), value(one.asking))
            line = lines.setdefault(shown, Line(*shown, loosened=one.loosened))
            line.targets.append(step)
    return sorted(lines.values(), key=lambda line: (line.verdict != "refuse", compatibility.FACTS.index(line.fact)))


def known(judged: Judged | None) -> list[Difference]:
    """Differences without those of `untold`."""
    return [one for one in judged.differences if not one.untold] if judged else []


def untold(found: Mapping[int, Judged]) -> list[str]:
    """Facts that neither a pin nor the run tells and that would only warn: one line names them."""
    names = {one.fact for judged in found.values() for one in judged.differences if one.untold}
    return sorted(names, key=compatibility.FACTS.index)


def value(told: Any) -> str:
    """A fact's value, short enough for a cell."""
    if told is None:
        return _("unknown")
    plain = told if isinstance(told, str) else json.dumps(told, ensure_ascii=False, default=str)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
