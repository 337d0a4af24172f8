"""What a run of a plan did, step by step, and the time that replays save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Min, Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import REPLAY_STATE_NAMES, SEGMENT_STATUSES, StatusSegment, format_percent, format_seconds
from rollouts.models import Pin, Run
from rollouts.replay import ReplayTimelineStep, load_generation_seconds, load_replay_timeline

STATE_NAMES = {**REPLAY_STATE_NAMES, "planned": N_("not reported")}  # a plan is shown after the run


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """`segments` by step. `saved` is the text about the saved time, empty if it is unknown."""

    run: Run
    last: int | None
    segments: Mapping[int, StatusSegment]
    counts: Mapping[str, int]
    saved: str
    restarts: Sequence[int]


def load_plan_outcome(run: Run) -> PlanOutcome:
    timeline = load_replay_timeline(run)
    steps = select_shown_steps(timeline.steps)
    segments = {step.step: build_outcome_segment(step) for step in steps}
    starts = run.attempts.restarts().annotate(first=Min("steps__step", filter=Q(steps__split="train")))
    restarts = [first for first in starts.order_by("number").values_list("first", flat=True) if first is not None]
    found = Counter(step.state for step in steps)
    counts = {state: found[state] for state in STATE_NAMES}
    counts["all_generated"] = counts["generated"] + counts["none"]
    saved = ""
    if timeline.estimated:
        saved = describe_saved_time(timeline.saved_net, timeline.wall)
    return PlanOutcome(run, max(segments, default=None), segments, counts, saved, restarts)


def select_shown_steps(steps: Sequence[ReplayTimelineStep]) -> Sequence[ReplayTimelineStep]:
    """Returns the steps without generated prompts that the plan does not have: their numbers are no steps."""
    return [step for step in steps if step.step_kind != "feed_index" or step.pin or step.state == "refused"] or steps


def build_outcome_segment(step: ReplayTimelineStep) -> StatusSegment:
    title = _("step {step}: {state}").format(step=step.step, state=_(STATE_NAMES[step.state]))
    title += format_prompts(step)
    title += f": {step.reason[:200]}" if step.reason else ""
    return StatusSegment(step.step, step.step, SEGMENT_STATUSES[step.state], title)


def format_prompts(step: ReplayTimelineStep) -> str:
    """` (511 of 512 prompts replayed)`, if the trainer reported prompts."""
    if not step.prompts:
        return ""
    text = _("{replayed} of {prompts} prompts replayed")
    return f" ({text.format(replayed=step.replayed_prompts, prompts=step.prompts)})"


def describe_saved_time(saved: float, wall: float) -> str:
    """`saved 3 min 12 s of 9 min 30 s (34 %)`: of the time that the run would have taken without replay."""
    if saved <= 0:
        return _("no time saved: loading took as long as generating")
    if wall <= 0:
        return _("saved {saved} of generation").format(saved=format_seconds(saved))
    text = _("saved {saved} of {total} ({percent})")
    total = wall + saved
    return text.format(saved=format_seconds(saved), total=format_seconds(total), percent=format_percent(saved, total))


def estimate_savings(pins: Sequence[Pin], action: str) -> str:
    """`saves 8 min 40 s at most, if all 14 are replayed`; empty if no generation time was logged, and for the actions
    that replay a pin at many steps."""
    if action != "cache":
        return ""
    seconds = load_generation_seconds({pin.pk: pin for pin in pins}.values())
    known = [seconds[pin.pk] for pin in pins if pin.pk in seconds]
    if not known:
        return ""
    text = _("saves {time} at most, if all {count} are replayed")
    if len(known) < len(pins):
        text = _("saves {time} at most, if the {known} of {count} steps with a known generation time are replayed")
    return text.format(time=format_seconds(sum(known)), count=len(pins), known=len(known))
