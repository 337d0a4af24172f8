"""The overview of a run: metric charts, status, problems with its data."""

from collections import Counter
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
from dashboard.pages import common
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
MIN_INDEXING_DELAY = timedelta(seconds=10)  # an active run always has a dump or two that are being indexed
chart_cache: Cache[tuple[object, ...], bytes] = Cache(MAX_CHART_BYTES, len)


@login_required
@require_safe
def run_page(request: HttpRequest, uid: str) -> HttpResponseBase:
    """`?attempt=all` draws earlier attempts too, faintly; the key of an attempt draws that one alone. `runs=` overlays
    other runs. `show=table` shows the numbers of the charts, `show=prompts` the heatmap.

    The script uses `m smooth log x closed`: filter, smoothing, axes, and the closed groups.
    """
    run = permissions.run_or_404(request, uid)
    status, over, waiting = run.status, overlays.find_overlay_runs(request, run), count_delayed_dumps(run)
    may_index = common.role_allows(run.project.role_of(request.user), "maintainer")
    return common.render_page_or_panel(
        request,
        "run/page.html",
        PANELS,
        lambda panel: (
            build_run_context(request, run, over, panel)
            | {"status": status, "may_index": may_index, "waiting": waiting}
        ),
        *(run.version, status, waiting, may_index, [(overlay.pk, overlay.name) for overlay in over]),
    )


def build_run_context(request: HttpRequest, run: Run, over: list[Run], panel: str) -> dict[str, Any]:
    url_state = common.StepUrlState.from_query(request.GET)
    common.attempt_or_404(run, url_state.attempt)
    show = request.GET.get("show", "")
    strip = common.load_step_strip(run, url_state.split or common.find_default_split(run))
    params = {name: common.clean_param(request.GET[name]) for name in ("attempt", "runs", "x") if request.GET.get(name)}
    context: dict[str, Any] = {
        "run": run, "project": run.project, "url_state": url_state, "split": strip.split, "strip": strip,
        "current": None, "tab": "overview", "show": show if show in SHOWS else "", "axis": get_chart_axis(request),
        "over": overlays.build_overlay_chips(request, run, over), "charts_query": urlencode(params),
    }  # fmt: skip
    if panel in {"", "notices"}:
        context |= build_notices_context(run)
    if panel in {"", "reuse"}:
        context |= replay_summary.build_replay_context(run)
    if panel in {"", "events"}:
        context |= timeline.build_timeline_context(run)
    if panel == "heat" or (not panel and show == "prompts"):
        context |= prompt_heatmap.build_heatmap_context(request, run)
    if panel == "overlay":
        context["offers"] = overlays.build_overlay_offers(request, run, over)
    return context


def get_chart_axis(request: HttpRequest) -> str:
    return "time" if request.GET.get("x") == "time" else "step"


def build_notices_context(run: Run) -> dict[str, Any]:
    """Problems that make the curves incomplete."""
    failed = run.dumps.filter(state__in=[Dump.State.FAILED, Dump.State.UNSAFE]).order_by("-received_at")
    unsafe = run.artifacts.filter(state=Artifact.State.UNSAFE).order_by("-created_at")
    return {
        "attempts": list(run.attempts.order_by("number")),
        "failed": list(failed[: MAX_FAILED_DUMPS + 1]),
        "unsafe": list(unsafe[:MAX_UNSAFE_ARTIFACTS]),
        "dropped": sum_dropped_rows(run),
    }


def count_delayed_dumps(run: Run) -> int:
    """The number of dumps that are not indexed; 0 if the oldest waits for less than `MIN_INDEXING_DELAY`."""
    dumps = run.dumps.filter(state__in=[Dump.State.RECEIVED, Dump.State.INDEXING])
    waiting = dumps.order_by().aggregate(count=Count("pk"), first=Min("received_at"))
    is_late = waiting["first"] and waiting["first"] < timezone.now() - MIN_INDEXING_DELAY
    return waiting["count"] if is_late else 0


def sum_dropped_rows(run: Run) -> list[tuple[str, int]]:
    """[(reason, count)] over all spools."""
    counts: Counter[str] = Counter()
    for by_reason in run.dropped.values():
        if isinstance(by_reason, dict):
            counts.update({reason: int(count) for reason, count in by_reason.items()})
    return sorted(counts.items())


@login_required
@require_safe
def nearest_step_view(request: HttpRequest, uid: str, step: str) -> HttpResponse:
    """Redirects from a point of a chart to the nearest step with samples: not every step with metrics has some."""
    run = permissions.run_or_404(request, uid)
    url_state = common.StepUrlState.from_query(request.GET)
    split = url_state.split or common.find_default_split(run)
    number = common.parse_step_number(step) or 0
    rows = run.steps.filter(split=split, step_kind=common.find_step_kind(run, split), superseded=False, samples__gt=0)
    numbers = rows.values_list("step", flat=True)
    before, after = numbers.filter(step__lte=number), numbers.filter(step__gte=number)
    candidates = [*before.order_by("-step")[:1], *after.order_by("step")[:1]]
    nearest = min(candidates, key=lambda candidate: abs(candidate - number), default=None)
    if nearest is None:
        messages.error(request, _("This run has no {split} samples yet.").format(split=split))
        return redirect("run", uid=run.uid)
    return redirect(reverse("step", args=[run.uid, nearest]) + common.StepUrlState(split=url_state.split).link())


@login_required
@require_safe
def chart_data_view(request: HttpRequest, uid: str) -> HttpResponse:
    """{default, groups, constant, colour, curves, over, left}: the layout of `rollouts.metrics.arrange_charts`, the
    points by metric of the run and, in `over`, of each run in `?runs=`, and how many metrics are left out. With
    `?x=time` each curve also has `hours`."""
    run = permissions.run_or_404(request, uid)
    url_state = common.StepUrlState.from_query(request.GET)
    common.attempt_or_404(run, url_state.attempt)
    over = overlays.find_overlay_runs(request, run)
    etag = common.compute_etag(request, "charts", ([(each.pk, each.version) for each in (run, *over)],))
    if request.headers.get("If-None-Match", "") == etag:
        return common.set_cache_headers(HttpResponseNotModified(), etag)
    body = encode_chart_data(run, over, url_state.attempt or "current", timed=get_chart_axis(request) == "time")
    return common.set_cache_headers(HttpResponse(body, content_type="application/json"), etag)


def encode_chart_data(run: Run, over: list[Run], attempt: str, *, timed: bool) -> bytes:
    """Cached by the versions of the runs, which name their content."""
    versions = tuple((each.pk, each.created_at, each.version, each.name) for each in (run, *over))
    key = (versions, attempt, timed, get_language())
    body = chart_cache.get(key)
    if body is None:
        body = orjson.dumps(build_chart_data(run, over, attempt, timed=timed))
        chart_cache.put(key, body)
    return body


def build_chart_data(run: Run, over: list[Run], attempt: str, *, timed: bool) -> dict[str, Any]:
    names = sorted({name for each in (run, *over) for name in list_metric_names(each)})
    shown, left = names[:MAX_METRIC_NAMES], names[MAX_METRIC_NAMES:]
    curves: dict[str, Any] = dict(load_curves(run, shown, max_points=MAX_CURVE_POINTS, attempt=attempt))
    if over:  # the attempts of other runs have other keys
        overlay_attempt = "all" if attempt == "all" else "current"
        curves |= load_curves(over, shown, max_points=MAX_CURVE_POINTS, attempt=overlay_attempt)
    layout = arrange_charts(shown, list(curves.values()))
    if timed:
        curves = dict(add_time_axis([run, *over], curves))
    plotted = {
        uid: {name: curve for name, curve in by_name.items() if curve and name not in layout.constant}
        for uid, by_name in curves.items()
    }
    others = [{"uid": each.uid, "name": each.name, "colour": each.colour, "curves": plotted[each.uid]} for each in over]
    own = {"colour": run.colour, "curves": plotted[run.uid]}
    return {**serialize_layout(layout), **own, "over": others, "left": len(left)}


def serialize_layout(layout: ChartLayout) -> dict[str, Any]:
    """Translates the titles of the default charts. Names of metrics are not translated."""
    fields = asdict(layout)
    for chart in fields["default"]:
        chart["title"] = _(chart["title"])
    return fields
