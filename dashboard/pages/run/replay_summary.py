"""What a run replayed and what guidance rules did in it, step by step, and the hit rate of the engine's own prefix
cache."""

import re
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from dashboard.pages.common import (
    REPLAY_STATE_NAMES,
    SEGMENT_STATUSES,
    StatusSegment,
    StepScale,
    build_polyline_points,
    build_status_strip,
    format_percent,
    format_seconds,
)
from dashboard.pages.pins import build_pin_link, format_pin_name, format_prompts
from dashboard.pages.run.guidance_summary import build_guidance_summary
from rollouts.metrics import list_metric_names, load_curves
from rollouts.models import Binding, Run
from rollouts.replay import ReplayTimelineStep, load_replay_timeline

# The colour class of a state in the table.
GRADES = {"replayed": "reused", "generated": "plain", "refused": "bad", "planned": "partial"}
MAX_EVENTS = 300
MAX_CACHE_POINTS = 200
PREFIX_CACHE_PATTERN = re.compile(r"(prefix|kv|radix)[^/]*cache[^/]*hit|cache_hit_rate", re.IGNORECASE)


def build_replay_context(run: Run, scale: StepScale | None) -> dict[str, Any]:
    """The context of `run/replay.html`; `replay_summary` is None if the run has neither a plan nor reports."""
    names = list_metric_names(run)
    return {
        "replay_summary": build_replay_summary(run, scale),
        "prefix_cache": load_prefix_cache(run, names),
        "guidance": build_guidance_summary(run, names),
    }


def build_replay_summary(run: Run, scale: StepScale | None) -> dict[str, Any] | None:
    binding = Binding.objects.filter(run=run).select_related("revision__plan").first()
    revision = binding.revision if binding else None
    if revision is None and not run.replays.exists():
        return None
    timeline = load_replay_timeline(run)
    if not timeline.steps:
        return None
    params = {"project": run.project.slug, "plan": revision.plan.name} if revision else {}
    pages = set(run.steps.filter(split="train").values_list("step_kind", "step"))
    segments = [build_replay_segment(run, step, (step.step_kind, step.step) in pages) for step in timeline.steps]
    reported = [step for step in timeline.steps if step.state in ("replayed", "generated", "refused")]
    counts = timeline.counts
    labels = [f"{counts[state]} {format_replay_state(state)}" for state in SEGMENT_STATUSES if counts[state]]
    saved = timeline.saved_net if timeline.estimated else 0.0
    return {
        "plan": str(revision) if revision else "",
        "plan_link": f"{reverse('pins')}?{urlencode(params)}" if params else "",
        "strip": build_status_strip(segments, scale),
        "steps": len(timeline.steps),
        "counts": counts,
        "label": ", ".join(labels),
        "rows": timeline.rows,
        "loading": format_seconds(timeline.seconds) if timeline.seconds else "",
        "estimated": timeline.estimated,
        "saved": format_seconds(saved) if saved > 0 else "",
        "saved_share": format_percent(saved, timeline.wall + saved) if saved > 0 and timeline.wall else "",
        "unknown": counts["replayed"] - timeline.estimated,
        "events": [build_replay_event(step) for step in reported[::-1][:MAX_EVENTS]],
        "more_events": len(reported) > MAX_EVENTS,
    }


def format_replay_state(state: str) -> str:
    return _(REPLAY_STATE_NAMES[state])


def build_replay_segment(run: Run, step: ReplayTimelineStep, has_page: bool) -> StatusSegment:
    """A replayed or planned step links to its source, another step to its own page."""
    title = _("step {step}: {state}").format(step=step.step, state=format_replay_state(step.state))
    title += format_prompts(step)
    title += f" {format_pin_name(step.pin)}" if step.pin and step.state != "generated" else ""
    title += f": {step.reason[:200]}" if step.reason else ""
    link = build_pin_link(step.pin, None) if step.pin and step.state in ("replayed", "planned") else ""
    page = reverse("step", args=[run.uid, str(step.step)]) if has_page else ""
    return StatusSegment(step.step, step.step, SEGMENT_STATUSES[step.state], title, link or page)


def build_replay_event(step: ReplayTimelineStep) -> dict[str, Any]:
    return {
        "step": step.step,
        "state": format_replay_state(step.state) + format_prompts(step),
        "grade": GRADES[step.state],
        "source": format_pin_name(step.pin) if step.pin else "",
        "source_link": build_pin_link(step.pin, None) if step.pin else "",
        "rows": step.rows,
        "seconds": "" if step.seconds is None else format_seconds(step.seconds),
        "saved": "" if step.saved is None else format_seconds(step.saved),
        "reason": step.reason,
    }


def load_prefix_cache(run: Run, names: list[str]) -> dict[str, Any] | None:
    """The hit rate of the KV prefix cache, if a metric of the run has such a name."""
    name = next((name for name in names if PREFIX_CACHE_PATTERN.search(name)), None)
    if name is None:
        return None
    curves = load_curves(run, [name], max_points=MAX_CACHE_POINTS)[run.uid][name]
    values = [value for curve in curves for value in curve["values"] if value is not None]
    return {"name": name, "points": build_polyline_points(values), "last": values[-1]} if values else None
