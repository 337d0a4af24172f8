"""What a plan does, step by step, and where its pins are incompatible with the run that it is compared with."""

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
STEPS_AFTER_LAST_TARGET = 4
MIN_PREVIEW_STEPS = 12
MAX_FACT_CHARS = 60

PinTexts = Mapping[int, str]  # {pin id: text}


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """`end` is the step at which a trainer that generates nothing ends; None for a trainer that generates."""

    strip: StatusStrip
    replays: int
    generates: int
    refuses: int
    end: int | None = None

    @property
    def label(self) -> str:
        """The text alternative of the strip."""
        if self.end is not None:
            text = _("Steps replayed: {replays}. The run ends at step {end}, which has no file to load.")
            return text.format(replays=self.replays, end=self.end)
        text = ngettext(
            "The run replays {replays} step and generates {generates}.",
            "The run replays {replays} steps and generates {generates}.",
            self.replays,
        )
        if self.refuses:
            text = ngettext(
                "The run replays {replays} step and generates {generates}; {refuses} incompatible.",
                "The run replays {replays} steps and generates {generates}; {refuses} incompatible.",
                self.replays,
            )
        return text.format(replays=self.replays, generates=self.generates, refuses=self.refuses)


def build_plan_preview(
    draft: PlanDraft, steps: range, names: PinTexts, refused: PinTexts, *, replays_only: bool
) -> PlanPreview:
    """`names` of pins; `refused`: why the run would not replay a pin; `replays_only`: the trainer generates nothing."""
    pins = {step: pin for pin, step in reversed(draft.pin_targets)}
    segments = [
        build_preview_segment(step, target, pins, names, refused, draft.on_mismatch)
        for step, target in resolve_targets(draft.action, list(pins), steps)
    ]
    end = next((segment.first for segment in segments if segment.status != "hit"), None) if replays_only else None
    if end is not None:
        reached = [segment for segment in segments if segment.first < end]
        segments = [*reached, *(build_unreached_segment(segment.first, end) for segment in segments[len(reached) :])]
    count = {word: sum(segment.status == word for segment in segments) for word in SEGMENT_HEIGHTS}
    return PlanPreview(build_status_strip(segments), count["hit"], count["none"], count["refused"], end)


def build_unreached_segment(step: int, end: int) -> StatusSegment:
    text = _("step {step}: no file to load; the run ends here")
    if step > end:
        text = _("step {step}: not reached; the run ends at step {end}")
    return StatusSegment(step, step, "none", text.format(step=step, end=end))


def build_preview_segment(
    step: int, target: int | None, pins: Mapping[int, int], names: PinTexts, refused: PinTexts, on_mismatch: str
) -> StatusSegment:
    if target is None:
        return StatusSegment(step, step, "none", _("step {step}: generate").format(step=step))
    pin = pins[target]
    text = _("step {step}: replay {pin}")
    if target != step:
        text = _("step {step}: replay {pin} (the pin of step {target})")
    title = text.format(step=step, pin=names.get(pin) or _("a pin"), target=target)
    if reason := refused.get(pin):
        text = _("{title}: incompatible ({why}); generate instead")
        if on_mismatch == "stop":
            text = _("{title}: incompatible ({why}); the run stops")
        return StatusSegment(step, step, "refused", text.format(title=title, why=reason))
    return StatusSegment(step, step, "hit", title)


def choose_last_step(requested: str, draft: PlanDraft, run_last: int | None) -> int:
    """The requested last step; otherwise the last step of the compared run, or a few steps after the last target."""
    if requested.isascii() and requested.isdigit() and len(requested) < 9 and int(requested):
        return min(int(requested), MAX_PREVIEW_STEPS)
    last = max((step for _pin, step in draft.pin_targets), default=0)
    return min(max(last + STEPS_AFTER_LAST_TARGET, run_last or 0, MIN_PREVIEW_STEPS), MAX_PREVIEW_STEPS)


@dataclass(slots=True)
class DifferenceRow:
    """A difference, and the target steps whose pins have it."""

    fact: str
    verdict: str
    pinned: str
    compared: str
    overridden: bool
    targets: list[int] = field(default_factory=list)

    @property
    def steps(self) -> str:
        return ", ".join(map(str, self.targets[:6])) + (" …" if len(self.targets) > 6 else "")


def group_differences(draft: PlanDraft, results: Mapping[int, EntryCompatibility]) -> list[DifferenceRow]:
    """One row for equal differences of several entries, refusals first. `results`: {pin id: result}."""
    rows: dict[tuple[str, str, str, str], DifferenceRow] = {}
    for pin, step in sorted(draft.pin_targets, key=lambda entry: entry[1]):
        for difference in find_known_differences(results.get(pin)):
            values = format_fact(difference.pinned), format_fact(difference.asking)
            key = (difference.fact, difference.verdict, *values)
            rows.setdefault(key, DifferenceRow(*key, overridden=difference.loosened)).targets.append(step)
    return sorted(rows.values(), key=lambda row: (row.verdict != "refuse", COMPATIBILITY_FACTS.index(row.fact)))


def find_known_differences(result: EntryCompatibility | None) -> list[FactDifference]:
    return [row for row in result.differences if not row.unknown_on_both_sides] if result else []


def find_unknown_facts(results: Mapping[int, EntryCompatibility]) -> list[str]:
    """Facts that are unknown for both pin and run; they only warn, so one line names all of them."""
    differences = [row for result in results.values() for row in result.differences]
    unknown = {row.fact for row in differences if row.unknown_on_both_sides}
    return sorted(unknown, key=COMPATIBILITY_FACTS.index)


def format_fact(value: Any) -> str:
    if value is None:
        return _("unknown")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_FACT_CHARS else text[: MAX_FACT_CHARS - 1] + "…"
