"""What a run reused, step by step, on its overview; and beside it the engine's own cache, which is another thing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as N_

from dashboard.pages.common import StatusSegment, build_polyline_points, build_status_strip
from dashboard.pages.pins import build_pin_link, format_pin_name
from rollouts.metrics import list_metric_names, load_curves
from rollouts.models import Binding, Run
from rollouts.replay import ReplayTimeline, ReplayTimelineStep, load_replay_timeline

# How a state is drawn, see `cells.HEIGHTS`, and its colour class in the table.
SEGMENT_WORDS = {"replayed": "hit", "generated": "miss", "refused": "refused", "planned": "planned", "none": "none"}
REPLAY_STATE_NAMES = {
    "replayed": N_("replayed"),
    "generated": N_("generated"),
    "refused": N_("refused"),
    "planned": N_("planned, not reported yet"),
    "none": N_("generated (not in plan)"),
}
GRADES = {"replayed": "reused", "generated": "plain", "refused": "bad", "planned": "partial"}
MAX_EVENTS = 300
MAX_CACHE_POINTS = 200
PREFIX_CACHE = re.compile(r"(prefix|kv|radix)[^/]*cache[^/]*hit|cache_hit_rate", re.IGNORECASE)


def build_replay_context(run: Run) -> dict[str, Any]:
    """The context of `run/replay.html`; `reuse` only where a plan or a report speaks of the run."""
    return {"reuse": build_replay_summary(run), "prefix_cache": load_prefix_cache(run)}


def build_replay_summary(run: Run) -> dict[str, Any] | None:
    binding = Binding.objects.filter(run=run).select_related("revision__plan").first()
    revision = binding.revision if binding else None
    if revision is None and not run.replays.exists():
        return None
    strip = load_replay_timeline(run)
    if not strip.steps:
        return None
    has = set(run.steps.filter(split="train").values_list("step_kind", "step"))
    drawn = [build_replay_segment(run, one, (one.step_kind, one.step) in has) for one in strip.steps]
    counts = strip.counts
    return {
        "plan": str(revision) if revision else "",
        "plan_link": f"{reverse('pins')}?{urlencode({'project': run.project.slug, 'plan': revision.plan.name})}"
        if revision
        else "",
        "track": build_status_strip(drawn),
        "steps": len(strip.steps),
        "counts": counts,
        "said": ", ".join(f"{counts[state]} {format_replay_state(state)}" for state in SEGMENT_WORDS if counts[state]),
        "rows": strip.rows,
        "loading": format_duration(strip.seconds) if strip.seconds else "",
        "saved": format_duration(strip.saved) if strip.estimated else "",
        "unknown": counts["replayed"] - strip.estimated,
        **build_replay_events(strip),
    }


def format_replay_state(state: str) -> str:
    return _(REPLAY_STATE_NAMES[state])


def build_replay_segment(run: Run, one: ReplayTimelineStep, has_page: bool) -> StatusSegment:
    """A replayed step leads to its source, any other to itself where it has a page."""
    source = f" {format_pin_name(one.pin)}" if one.pin and one.state != "generated" else ""
    title = _("step {step}: {said}").format(step=one.step, said=format_replay_state(one.state)) + source
    title += f": {one.reason[:200]}" if one.reason else ""
    link = build_pin_link(one.pin, None) if one.pin and one.state in ("replayed", "planned") else ""
    own = reverse("step", args=[run.uid, str(one.step)]) if has_page else ""
    return StatusSegment(one.step, one.step, SEGMENT_WORDS[one.state], title, link or own)


def build_replay_events(strip: ReplayTimeline) -> dict[str, Any]:
    """The steps that something was reported of, newest first."""
    told = [one for one in strip.steps if one.state in ("replayed", "generated", "refused")]
    return {
        "events": [build_replay_event(one) for one in told[::-1][:MAX_EVENTS]],
        "more_events": len(told) > MAX_EVENTS,
    }


def build_replay_event(one: ReplayTimelineStep) -> dict[str, Any]:
    return {
        "step": one.step,
        "said": format_replay_state(one.state),
        "grade": GRADES[one.state],
        "source": format_pin_name(one.pin) if one.pin else "",
        "source_link": build_pin_link(one.pin, None) if one.pin else "",
        "rows": one.rows,
        "seconds": "" if one.seconds is None else format_duration(one.seconds),
        "saved": "" if one.saved is None else format_duration(one.saved),
        "reason": one.reason,
    }


def format_duration(seconds: float) -> str:
    """`0.4 s`, `52 s`, `12 min`, `3.4 h`."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:,.1f} h"


@dataclass(frozen=True, slots=True)
class PrefixCache:
    name: str
    points: str
    last: float


def load_prefix_cache(run: Run) -> PrefixCache | None:
    """The KV prefix cache's hit rate, where a metric of the run is called like one."""
    name = next((name for name in list_metric_names(run) if PREFIX_CACHE.search(name)), None)
    if name is None:
        return None
    curves = load_curves(run, [name], max_points=MAX_CACHE_POINTS)[run.uid][name]
    values = [value for curve in curves for value in curve["values"] if value is not None]
    return PrefixCache(name, build_polyline_points(values), values[-1]) if values else None
