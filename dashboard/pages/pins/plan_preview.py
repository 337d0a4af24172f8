"""What a plan would do: step by step, and where its pins do not fit the run that it is held against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from dashboard.pages.common import SEGMENT_HEIGHTS, StatusSegment, StatusStrip, build_status_strip
from dashboard.pages.pins.plan_draft import PlanDraft
from rolloutdeck.protocol import COMPATIBILITY_FACTS, FactDifference, resolve_targets
from rollouts.replay import EntryCompatibility

MAX_PREVIEW_STEPS = 10_000
STEPS_AFTER_LAST_TARGET = 4  # steps to show after the last target, so that what comes then is seen
MIN_PREVIEW_STEPS = 12
MAX_FACT_CHARS = 60


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """`end` is the step at which a trainer that generates nothing ends; None for one that generates."""

    track: StatusStrip
    replays: int
    generates: int
    refuses: int
    end: int | None = None

    @property
    def said(self) -> str:
        """For those who do not see the strip."""
        if self.end is not None:
            said = _("Steps replayed: {replays}. The run ends at step {end}, which has no file to load.")
            return said.format(replays=self.replays, end=self.end)
        said = ngettext(
            "The run replays {replays} step and generates {generates}.",
            "The run replays {replays} steps and generates {generates}.",
            self.replays,
        )
        if self.refuses:
            said = ngettext(
                "The run replays {replays} step and generates {generates}; {refuses} incompatible.",
                "The run replays {replays} steps and generates {generates}; {refuses} incompatible.",
                self.replays,
            )
        return said.format(replays=self.replays, generates=self.generates, refuses=self.refuses)


def build_plan_preview(
    draft: PlanDraft,
    first: int,
    steps: int,
    names: Mapping[int, str],
    refused: Mapping[int, str],
    *,
    alone: bool = False,
) -> PlanPreview:
    """Of the steps `first` to `steps`. `names` by pin; `refused` by pin: why the run would not replay it; `alone`: the
    trainer generates nothing."""
    pins = {step: pin for pin, step in reversed(draft.entries)}
    drawn = [
        build_preview_segment(step, target, pins, names, refused, draft.on_mismatch)
        for step, target in resolve_targets(draft.action, list(pins), range(first, steps + 1))
    ]
    end = next((one.first for one in drawn if one.word != "hit"), None) if alone else None
    if end is not None:
        drawn = [one if one.first < end else build_unreached_segment(one.first, end) for one in drawn]
    count = {word: sum(one.word == word for one in drawn) for word in SEGMENT_HEIGHTS}
    return PlanPreview(build_status_strip(drawn), count["hit"], count["none"], count["refused"], end)


def build_unreached_segment(step: int, end: int) -> StatusSegment:
    said = _("step {step}: no file to load; the run ends here")
    if step > end:
        said = _("step {step}: not reached; the run ends at step {end}")
    return StatusSegment(step, step, "none", said.format(step=step, end=end))


def build_preview_segment(
    step: int,
    target: int | None,
    pins: Mapping[int, int],
    names: Mapping[int, str],
    refused: Mapping[int, str],
    on_mismatch: str,
) -> StatusSegment:
    if target is None:
        return StatusSegment(step, step, "none", _("step {step}: generate").format(step=step))
    pin = pins[target]
    told = _("step {step}: replay {pin}")
    if target != step:
        told = _("step {step}: replay {pin} (the pin of step {target})")
    title = told.format(step=step, pin=names.get(pin) or _("a pin"), target=target)
    if why := refused.get(pin):
        said = _("{title}: incompatible ({why}); generate instead")
        if on_mismatch == "stop":
            said = _("{title}: incompatible ({why}); the run stops")
        return StatusSegment(step, step, "refused", said.format(title=title, why=why))
    return StatusSegment(step, step, "hit", title)


def count_preview_steps(asked: str, draft: PlanDraft, run_steps: int | None) -> int:
    """What the page was asked for; else to the end of the run it is held against, or a little past the last target."""
    if asked.isascii() and asked.isdigit() and len(asked) < 9 and int(asked):
        return min(int(asked), MAX_PREVIEW_STEPS)
    last = max(draft.targets, default=0)
    return min(max(last + STEPS_AFTER_LAST_TARGET, run_steps or 0, MIN_PREVIEW_STEPS), MAX_PREVIEW_STEPS)


@dataclass(slots=True)
class DifferenceRow:
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


def group_differences(draft: PlanDraft, found: Mapping[int, EntryCompatibility]) -> list[DifferenceRow]:
    """Equal differences of several entries in one line, refusals first."""
    lines: dict[tuple[str, str, str, str], DifferenceRow] = {}
    for pin, step in sorted(draft.entries, key=lambda entry: entry[1]):
        for one in find_known_differences(found.get(pin)):
            shown = (one.fact, one.verdict, format_fact(one.pinned), format_fact(one.asking))
            line = lines.setdefault(shown, DifferenceRow(*shown, loosened=one.loosened))
            line.targets.append(step)
    return sorted(lines.values(), key=lambda line: (line.verdict != "refuse", COMPATIBILITY_FACTS.index(line.fact)))


def find_known_differences(judged: EntryCompatibility | None) -> list[FactDifference]:
    """Differences without the facts that both sides do not know."""
    return [one for one in judged.differences if not one.unknown_on_both_sides] if judged else []


def find_unknown_facts(found: Mapping[int, EntryCompatibility]) -> list[str]:
    """Facts that neither a pin nor the run tells and that would only warn: one line names them."""
    names = {one.fact for judged in found.values() for one in judged.differences if one.unknown_on_both_sides}
    return sorted(names, key=COMPATIBILITY_FACTS.index)


def format_fact(told: Any) -> str:
    """A fact's value, short enough for a cell."""
    if told is None:
        return _("unknown")
    plain = told if isinstance(told, str) else json.dumps(told, ensure_ascii=False, default=str)
    return plain if len(plain) <= MAX_FACT_CHARS else plain[: MAX_FACT_CHARS - 1] + "…"
