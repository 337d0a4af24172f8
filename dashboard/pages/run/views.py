"""A run's overview: its metrics as charts, its state, and what went wrong with what arrived."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import orjson
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotModified
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import (
    StepUrlState,
    attempt_or_404,
    clean_param,
    compute_etag,
    find_default_split,
    find_step_kind,
    load_step_strip,
    parse_step_number,
    render_page_or_panel,
    role_allows,
    set_cache_headers,
)
from dashboard.pages.run import overlays, prompt_heatmap, replay_summary, timeline
from rollouts.lib import MAX_CHART_BYTES, Cache
from rollouts.metrics import ChartLayout, add_time_axis, arrange_charts, list_metric_names, load_curves
from rollouts.models import Artifact, Dump, Run

PANELS = {
    "strip": "common/strip.html",
    "alive": "common/last_update.html",
    "notices": "run/notices.html",
    "reuse": "run/replay.html",
    "events": "run/timeline.html",
    "heat": "run/heatmap.html",
    "overlay": "run/overlay.html",
}
SHOWS = ("", "table", "prompts")
MAX_CURVE_POINTS = 500
MAX_METRIC_NAMES = 400
MAX_FAILED_DUMPS = 20
MAX_UNSAFE_ARTIFACTS = 5
SLOW = timedelta(seconds=10)  # a run that goes on always has a dump or two that are being indexed
# Drawings in memory, by their bytes: each of up to `MOST_POINTS` points a metric and run takes about 25.
kept: Cache[tuple[object, ...], bytes] = Cache(MAX_CHART_BYTES, len)


@login_required
@require_safe
def run_page(request: HttpRequest, uid: str) -> HttpResponseBase:
    """`?attempt=all` draws older attempts too, faint; an attempt's key draws that one alone. `runs=` lays others over.

    `show=table` gives the numbers of the charts, `show=prompts` the map of prompts over steps; `m smooth log x closed`
    are the script's: filter, smoothing, axes, and the groups that are shut.
    """
    one = permissions.run_or_404(request, uid)
    status, over, waiting = one.status, overlays.find_overlay_runs(request, one), count_delayed_dumps(one)
    may_index = role_allows(one.project.role_of(request.user), "maintainer")
    return render_page_or_panel(
        request,
        "run/page.html",
        PANELS,
        lambda panel: (
            build_run_context(request, one, over, panel)
            | {"status": status, "may_index": may_index, "waiting": waiting}
        ),
        one.version,
        status,
        waiting,
        may_index,
        [(run.pk, run.name) for run in over],
    )


def build_run_context(request: HttpRequest, one: Run, over: list[Run], panel: str) -> dict[str, Any]:
    ask = StepUrlState.from_query(request.GET)
    attempt_or_404(one, ask.attempt)
    show = request.GET.get("show", "")
    track = load_step_strip(one, ask.split or find_default_split(one))
    shown: dict[str, Any] = {
        "run": one, "project": one.project, "url_state": ask, "split": track.split, "strip": track, "current": None,
        "tab": "overview", "show": show if show in SHOWS else "", "axis": get_chart_axis(request),
        "over": overlays.build_overlay_chips(request, one, over), "charts_address": build_charts_query(request),
    }  # fmt: skip
    if panel in {"", "notices"}:
        shown |= build_notices_context(one)
    if panel in {"", "reuse"}:
        shown |= replay_summary.build_replay_context(one)
    if panel in {"", "events"}:
        shown |= timeline.build_timeline_context(one)
    if panel == "heat" or (not panel and show == "prompts"):
        shown |= prompt_heatmap.build_heatmap_context(request, one)
    if panel == "overlay":
        shown["offers"] = overlays.build_overlay_offers(request, one, over)
    return shown


def get_chart_axis(request: HttpRequest) -> str:
    return "time" if request.GET.get("x") == "time" else "step"


def build_charts_query(request: HttpRequest) -> str:
    """The query of the charts' numbers: what the page's own says of attempts, runs and the axis."""
    return urlencode(
        {name: clean_param(request.GET[name]) for name in ("attempt", "runs", "x") if request.GET.get(name)}
    )


def build_notices_context(one: Run) -> dict[str, Any]:
    """What a person should know before believing the curves."""
    attempts = list(one.attempts.order_by("number"))
    failed = one.dumps.filter(state__in=[Dump.State.FAILED, Dump.State.UNSAFE]).order_by("-received_at")
    unsafe = one.artifacts.filter(state=Artifact.State.UNSAFE).order_by("-created_at")
    return {
        "attempts": attempts,
        "failed": list(failed[: MAX_FAILED_DUMPS + 1]),
        "unsafe": list(unsafe[:MAX_UNSAFE_ARTIFACTS]),
        "dropped": sum_dropped_rows(one),
    }


def count_delayed_dumps(one: Run) -> int:
    """How many dumps are to be indexed, where that takes longer than a run that goes on always needs."""
    due = one.dumps.filter(state__in=[Dump.State.RECEIVED, Dump.State.INDEXING])
    found = due.order_by().aggregate(count=Count("pk"), first=Min("received_at"))
    return found["count"] if found["first"] and found["first"] < timezone.now() - SLOW else 0


def sum_dropped_rows(one: Run) -> list[tuple[str, int]]:
    """[(reason, count)] over all spools."""
    counts: dict[str, int] = {}
    for by_reason in one.dropped.values():
        for reason, count in by_reason.items() if isinstance(by_reason, dict) else ():
            counts[reason] = counts.get(reason, 0) + int(count)
    return sorted(counts.items())


@login_required
@require_safe
def nearest_step_view(request: HttpRequest, uid: str, step: str) -> HttpResponse:
    """To the step with samples that is nearest to a point of a chart: metrics come of every step, dumps mostly not."""
    one = permissions.run_or_404(request, uid)
    ask = StepUrlState.from_query(request.GET)
    split = ask.split or find_default_split(one)
    wanted = parse_step_number(step) or 0
    there = one.steps.filter(split=split, step_kind=find_step_kind(one, split), superseded=False, samples__gt=0)
    ends = [
        there.filter(step__lte=wanted).order_by("-step").values_list("step", flat=True).first(),
        there.filter(step__gte=wanted).order_by("step").values_list("step", flat=True).first(),
    ]
    found = [end for end in ends if end is not None]
    if not found:
        said = _("This run has no {split} samples yet.")
        messages.error(request, said.format(split=split))
        return redirect("run", uid=one.uid)
    closest = min(found, key=lambda end: abs(end - wanted))
    return redirect(reverse("step", args=[one.uid, closest]) + StepUrlState(split=ask.split).link())


@login_required
@require_safe
def chart_data_view(request: HttpRequest, uid: str) -> HttpResponse:
    """{default, groups, constant, colour, curves, over, left}: the layout of `rollouts.metrics.chart_layout`,
    the points of all that it draws, by metric for the run itself and in `over` for each run of `?runs=`, and how many
    metrics are not drawn. With `?x=time` each curve has `hours` too."""
    one = permissions.run_or_404(request, uid)
    ask = StepUrlState.from_query(request.GET)
    attempt_or_404(one, ask.attempt)
    over = overlays.find_overlay_runs(request, one)
    etag = compute_etag(request, "charts", ([(run.pk, run.version) for run in (one, *over)],))
    if request.headers.get("If-None-Match", "") == etag:
        return set_cache_headers(HttpResponseNotModified(), etag)
    body = encode_chart_data(one, over, ask.attempt or "current", timed=get_chart_axis(request) == "time")
    return set_cache_headers(HttpResponse(body, content_type="application/json"), etag)


def encode_chart_data(one: Run, over: list[Run], attempt: str, *, timed: bool) -> bytes:
    """The drawing as of the runs' versions, which rise with every visible change."""
    runs = tuple((run.pk, run.created_at, run.version, run.name) for run in (one, *over))
    known = (runs, attempt, timed, get_language())
    body = kept.get(known)
    if body is None:
        body = orjson.dumps(build_chart_data(one, over, attempt, timed=timed))
        kept.put(known, body)
    return body


def build_chart_data(one: Run, over: list[Run], attempt: str, *, timed: bool) -> dict[str, Any]:
    names = sorted({name for run in (one, *over) for name in list_metric_names(run)})
    shown, left = names[:MAX_METRIC_NAMES], names[MAX_METRIC_NAMES:]
    curves: dict[str, Any] = dict(load_curves(one, shown, max_points=MAX_CURVE_POINTS, attempt=attempt))
    if over:  # another run's attempts have other keys
        every = "all" if attempt == "all" else "current"
        curves |= load_curves(over, shown, max_points=MAX_CURVE_POINTS, attempt=every)
    layout = arrange_charts(shown, list(curves.values()))
    if timed:
        curves = dict(add_time_axis([one, *over], curves))
    drawn = {
        uid: {name: found for name, found in by_name.items() if found and name not in layout.constant}
        for uid, by_name in curves.items()
    }
    others = [{"uid": run.uid, "name": run.name, "colour": run.colour, "curves": drawn[run.uid]} for run in over]
    return {
        **serialize_layout(layout),
        "colour": one.colour,
        "curves": drawn[one.uid],
        "over": others,
        "left": len(left),
    }


def serialize_layout(layout: ChartLayout) -> dict[str, Any]:
    """The layout, the titles of its first charts in the reader's language; metrics are called as they were logged."""
    said = asdict(layout)
    for chart in said["default"]:
        chart["title"] = _(chart["title"])
    return said
