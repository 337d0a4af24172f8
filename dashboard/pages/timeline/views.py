"""The page of the timeline: `?step=` selects a step, else the newest one is shown; `show=share` draws shares."""

from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.timeline.overlap_chart import build_overlap_chart
from dashboard.pages.timeline.phase_chart import PHASE_NAMES, build_phase_chart
from dashboard.pages.timeline.step_columns import build_step_columns, find_step_scale
from dashboard.pages.timeline.step_samples import build_samples_context, find_sample_step
from rolloutdeck.trainer_api import list_timings
from rollouts.metrics import StepTimes, load_step_times
from rollouts.models import Run

PANELS = {"strip": "common/strip.html", "alive": "common/last_update.html", "timeline": "timeline/main.html"}
SLOW_RATIO = 1.3  # from which a step is called slower than the median


@login_required
@require_safe
def timeline_page(request: HttpRequest, uid: str) -> HttpResponseBase:
    """Seconds per step by phase; the selected step in words and numbers; its slowest samples and their staleness."""
    run = permissions.run_or_404(request, uid)
    return common.render_page_or_panel(
        request,
        "timeline/page.html",
        PANELS,
        lambda panel: build_timeline_context(request, run, panel),
        run.version,
        run.status,
        common.load_blind_queues(request).queues,
    )


def build_timeline_context(request: HttpRequest, run: Run, panel: str) -> dict[str, Any]:
    split = common.find_default_split(run)
    times = load_step_times(run)
    strip = common.load_step_strip(run, split)
    scale, is_shared = find_step_scale(times, strip, common.find_step_kind(run, split))
    if scale and is_shared:
        strip = strip.place_on(scale)
    context: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": common.StepUrlState(), "split": split, "strip": strip,
        "current": None, "tab": "overview", "view": "timeline", "status": run.status,
    }  # fmt: skip
    if panel in {"strip", "alive"}:
        return context
    shares = request.GET.get("show") == "share"
    requested = common.parse_step_number(request.GET.get("step", ""))
    if times is not None and scale is not None:
        row = find_shown_row(times, requested)
        kind, step = times.step_kind, int(times.steps[row])
        context |= build_phases_context(times, scale, row, shares=shares)
    else:
        kind = common.find_step_kind(run, "train")
        newest = run.steps.current().filter(split="train", step_kind=kind, samples__gt=0)
        newest_step = newest.order_by("-step").values_list("step", flat=True).first() or 0
        step = newest_step if requested is None else requested
    samples = build_samples_context(find_sample_step(run, kind, step), common.load_blind_queues(request))
    return context | samples | {"times": times, "step": step, "shares": shares, "setup_lines": list_setup_lines()}


def list_setup_lines() -> list[tuple[str, str]]:
    """Returns [(trainer, the line that makes it send its phases)]."""
    return [(timing.trainer, timing.setup_line) for timing in list_timings() if timing.setup_line]


def find_shown_row(times: StepTimes, requested: int | None) -> int:
    """The row of the requested step, or of the nearest one; without it the newest."""
    if requested is None:
        return len(times) - 1
    row = times.find_row(requested)
    return int(np.argmin(np.abs(times.steps - requested))) if row is None else row


def build_phases_context(times: StepTimes, scale: common.StepScale, row: int, *, shares: bool) -> dict[str, Any]:
    phases, own_shares, columns = times.recorded_phases(), times.shares(), build_step_columns(times, scale)
    extra = {"show": "share"} if shares else {}

    def link(step: object) -> str:
        """Only a query: the tab stop is found again by its link after an update (static/js/common/roving.js)."""
        return f"?{urlencode({'step': step, **extra})}"

    return {
        "legend": [(name, _(PHASE_NAMES[name]), f"{100 * own_shares[name]:.0f} %") for name in reversed(phases)],
        "chart": build_phase_chart(times, columns, phases, row, link("STEP"), shares=shares),
        "overlap_chart": build_overlap_chart(times, columns, row, link("STEP")),
        "median_seconds": float(np.median(times.total)),
        "slowest_step": int(times.steps[times.slowest]),
        "slowest_seconds": float(times.total[times.slowest]),
        "slowest_link": link(int(times.steps[times.slowest])),
        "whole_seconds": float(times.total.sum()),
        "step_seconds": float(times.total[row]),
        "earlier_link": link(int(times.steps[row - 1])) if row else "",
        "later_link": link(int(times.steps[row + 1])) if row + 1 < len(times) else "",
        "mode_links": (f"?step={int(times.steps[row])}", f"?step={int(times.steps[row])}&show=share"),
        "step_summary": describe_step(times, row),
        "phase_rows": build_phase_rows(times, row),
        "overlap": build_overlap_rows(times, row),
    }


def describe_step(times: StepTimes, row: int) -> str:
    """One sentence: what took most of the step, and whether the trainer waited."""
    total, overlap = float(times.total[row]), float(times.overlap[row])
    waiting = float(np.nan_to_num(times.column("waiting")[row]))
    seconds = common.format_seconds
    if overlap > 0:
        text = _(
            "generation took {generation}, {overlap} of it while the trainer worked; the trainer waited {waiting}."
        )
        numbers = {"generation": float(times.generation[row]), "overlap": overlap, "waiting": waiting}
        return text.format(**{name: seconds(value) for name, value in numbers.items()})
    phases = {name: float(np.nan_to_num(times.column(name)[row])) for name in times.recorded_phases()}
    name = max(phases, key=lambda each: phases[each], default="other")
    text = _("{phase} took {seconds} of {total}.")
    if name == "waiting":
        text = _("the trainer waited {seconds} of {total} for samples.")
    summary = text.format(phase=_(PHASE_NAMES[name]), seconds=seconds(phases.get(name)), total=seconds(total))
    median = float(np.median(times.total))
    if median > 0 and total >= SLOW_RATIO * median:
        ratio = _("{ratio} × the median step.").format(ratio=f"{total / median:.1f}")
        return f"{summary} {ratio}"
    return summary


def build_phase_rows(times: StepTimes, row: int) -> list[dict[str, Any]]:
    """The phases of a step: seconds, share, and the median over all steps."""
    total = float(times.total[row]) or 1.0
    rows = []
    for name in times.recorded_phases():
        column = times.column(name)
        value = None if np.isnan(column[row]) else float(column[row])
        median = float(np.median(np.nan_to_num(column)))
        share = 100 * (value or 0.0) / total
        rows.append({"phase": name, "name": _(PHASE_NAMES[name]), "seconds": value, "share": share, "median": median})
    return rows


def build_overlap_rows(times: StepTimes, row: int) -> list[tuple[str, float]]:
    """[(label, percent of the step)]; empty for a step without overlap."""
    total, overlap = float(times.total[row]), float(times.overlap[row])
    if overlap <= 0 or not total:
        return []
    waiting = float(np.nan_to_num(times.column("waiting")[row]))
    return [
        (_("generation busy"), 100 * min(1.0, float(times.generation[row]) / total)),
        (_("trainer busy"), 100 * (1 - waiting / total)),
        (_("both at once"), 100 * overlap / total),
    ]
