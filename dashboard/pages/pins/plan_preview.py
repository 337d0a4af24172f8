"""What a plan does, step by step, and where its pins differ from the run that it is compared with."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from dashboard.pages.common import StatusSegment
from dashboard.pages.pins.plan_draft import PlanDraft
from rolloutdeck.protocol import COMPATIBILITY_FACTS, format_step_ranges, resolve_targets
from rollouts.replay import PREVIEW_LABELS, EntryCompatibility, EntryPreview

MAX_PREVIEW_STEPS = 10_000
STEPS_AFTER_LAST_TARGET = 4
MIN_PREVIEW_STEPS = 12
MAX_FACT_CHARS = 60

PinTexts = Mapping[int, str]  # {pin id: text}


# How a state of an entry is drawn; a pin that cannot be replayed is higher than a step without a pin.
STATE_SEGMENTS = {"will_replay": "hit", "unknown": "unknown", "conflict": "conflict", "will_generate": "miss"}


@dataclass(frozen=True, slots=True)
class PlanPreview:
    """What a run of the plan does at each step: `counts` by state. `end` is the step at which a trainer that generates
    nothing ends; None for a trainer that generates."""

    segments: tuple[StatusSegment, ...]
    counts: Mapping[str, int]
    end: int | None = None

    @property
    def label(self) -> str:
        """The text alternative of the drawing."""
        if self.end is not None:
            text = _("Steps with a file to load: {replays}. The run ends at step {end}, which has no file to load.")
            return text.format(replays=self.counts["will_replay"] + self.counts["unknown"], end=self.end)
        parts = [f"{_(PREVIEW_LABELS[state])}: {count}" for state, count in self.counts.items() if count]
        return "; ".join(parts)


def build_plan_preview(
    draft: PlanDraft, steps: range, names: PinTexts, previews: Mapping[int, EntryPreview], *, replays_only: bool
) -> PlanPreview:
    """`names` of pins; `previews` by target step; `replays_only`: the trainer generates nothing."""
    pins = {step: pin for pin, step in reversed(draft.pin_targets)}
    states: list[str] = []
    segments: list[StatusSegment] = []
    for step, target in resolve_targets(draft.action, list(pins), steps):
        preview = previews.get(target) if target is not None else None
        if preview and step != target and preview.state == "will_replay" and preview.needs_prompts:
            preview = replace(preview, state="unknown", reason=_("the prompts of this step were not compared"))
        states.append(preview.state if preview else "will_generate")
        segments.append(build_preview_segment(step, target, pins, names, preview, draft.on_mismatch))
    end = None
    if replays_only:
        end = next((segment.first for segment in segments if segment.status not in ("hit", "unknown")), None)
    if end is not None:
        reached = [segment for segment in segments if segment.first < end]
        segments = [*reached, *(build_unreached_segment(segment.first, end) for segment in segments[len(reached) :])]
        states = [*states[: len(reached)], *["will_generate"] * (len(states) - len(reached))]
    return PlanPreview(tuple(segments), {state: states.count(state) for state in PREVIEW_LABELS}, end)


def build_unreached_segment(step: int, end: int) -> StatusSegment:
    text = _("step {step}: no file to load; the run ends here")
    if step > end:
        text = _("step {step}: not reached; the run ends at step {end}")
    return StatusSegment(step, step, "none", text.format(step=step, end=end))


def build_preview_segment(
    step: int,
    target: int | None,
    pins: Mapping[int, int],
    names: PinTexts,
    preview: EntryPreview | None,
    on_mismatch: str,
) -> StatusSegment:
    if target is None or preview is None:
        return StatusSegment(step, step, "none", _("step {step}: will generate").format(step=step))
    text = _("step {step}: {pin}, {state}: {reason}")
    if target != step:
        text = _("step {step}: {pin} (the pin of step {target}), {state}: {reason}")
    if preview.state == "will_generate" and on_mismatch == "stop":
        text += _("; the run stops")
    pin = names.get(pins[target]) or _("a pin")
    title = text.format(step=step, target=target, pin=pin, state=preview.label, reason=preview.reason)
    return StatusSegment(step, step, STATE_SEGMENTS[preview.state], title)


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
        return format_step_ranges(self.targets)


def group_differences(entries: Iterable[EntryCompatibility]) -> list[DifferenceRow]:
    """One row for equal differences of several entries, refusals first. Unknown values are no differences."""
    rows: dict[tuple[str, str, str, str], DifferenceRow] = {}
    for result in entries:
        for difference in result.differences:
            if difference.unknown:
                continue
            values = format_fact(difference.pinned), format_fact(difference.asking)
            key = (difference.fact, difference.verdict, *values)
            row = rows.setdefault(key, DifferenceRow(*key, overridden=difference.loosened))
            row.targets.append(result.entry.target_step)
    return sorted(rows.values(), key=lambda row: (row.verdict != "refuse", COMPATIBILITY_FACTS.index(row.fact)))


def find_unknown_facts(entries: Iterable[EntryCompatibility]) -> list[str]:
    """Facts that the pin or the run does not know, so that they are not compared. One line names all of them."""
    unknown = {row.fact for result in entries for row in result.differences if row.unknown}
    return sorted(unknown, key=COMPATIBILITY_FACTS.index)


def format_fact(value: Any) -> str:
    if value is None:
        return _("unknown")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_FACT_CHARS else text[: MAX_FACT_CHARS - 1] + "…"
