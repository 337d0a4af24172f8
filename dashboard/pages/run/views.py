"""The overview of a run: metric charts, status, problems with its data."""

from collections import Counter
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import cache, partial
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.run import chart_data, events, overlays, prompt_heatmap, replay_summary, step_axis
from rollouts.ingest import count_rejected_rows, list_row_problems
from rollouts.lib import CacheSize, NewestCache
from rollouts.models import Artifact, Dump, Run
from rollouts.retention import load_quota_status, load_run_drops

PANELS = {
    "strip": "common/strip.html",
    "alive": "common/last_update.html",
    "notices": "run/notices.html",
    "reuse": "run/replay.html",
    "events": "run/events.html",
    "heat": "run/heatmap.html",
    "overlay": "run/overlay.html",
}
CHART_PARAMS = ("attempt", "runs", "groups", "band", "x")  # of the request for the chart data
SHOW_VALUES = ("", "table", "prompts")
MAX_FAILED_DUMPS = 20
MAX_UNSAFE_ARTIFACTS = 5
DELAY_BEFORE_NOTICE = timedelta(seconds=10)  # an active run always has a dump or two that are being indexed


@login_required
@require_safe
def run_page(request: HttpRequest, uid: str) -> HttpResponseBase:
    """`?attempt=all` draws earlier attempts too, faintly; the key of an attempt draws that one alone. `runs=` overlays
    other runs. `show=table` shows the numbers of the charts, `show=prompts` the heatmap.

    `groups=` overlays groups of runs as mean and range, with `band=0` as single runs.

    The script uses `m smooth log x closed open one chart zoom y ask`: filter, smoothing, axes, sections, the run of
    charts of several metrics, the large chart with its zoom and range, and charts of queries.
    """
    run = permissions.run_or_404(request, uid)
    status, overlay_runs, waiting = run.status, overlays.find_overlay_runs(request, run), count_delayed_dumps(run)
    role = run.project.role_of(request.user)
    is_maintainer, may_share = permissions.role_allows(role, "maintainer"), permissions.role_allows(role, "owner")
    load_common_context = cache(lambda: build_common_context(request, run, overlay_runs))
    version = (run.version, status, waiting)
    return common.render_page_or_panel(
        request,
        "run/page.html",
        PANELS,
        lambda panel: (
            build_panel_context(request, run, overlay_runs, load_common_context(), panel, version)
            | {"status": status, "may_index": is_maintainer, "may_arrange": is_maintainer, "waiting": waiting}
            | {"may_share": may_share}
        ),
        *(*version, is_maintainer, may_share),
        *((overlay.pk, overlay.name) for overlay in overlay_runs),
    )


def build_common_context(request: HttpRequest, run: Run, overlay_runs: list[Run]) -> dict[str, Any]:
    """What all panels share. Raises Http404."""
    url_state = common.StepUrlState.from_query(request.GET)
    common.attempt_or_404(run, url_state.attempt)
    show = request.GET.get("show", "")
    strip = common.load_step_strip(run, url_state.split or common.find_default_split(run))
    groups = overlays.find_overlay_groups(request, run)
    scale, has_replays = step_axis.find_step_scale(run), step_axis.has_replay_timeline(run)
    strip = strip.place_on(scale, with_replays=not has_replays) if scale else strip
    params = {name: common.clean_param(request.GET[name]) for name in CHART_PARAMS if request.GET.get(name)}
    return {
        "run": run, "project": run.project, "url_state": url_state, "split": strip.split, "strip": strip,
        "current": None, "tab": "overview", "show": show if show in SHOW_VALUES else "", "groups": groups,
        "scale": scale, "has_replays": has_replays,
        "axis": chart_data.get_chart_axis(request), "charts_query": urlencode(params),
        "overlay_chips": overlays.build_overlay_chips(request, run, overlay_runs),
        "group_chips": overlays.build_group_chips(request, run, overlay_runs, groups),
        "bands": request.GET.get("band") != "0",
    }  # fmt: skip


def build_panel_context(
    request: HttpRequest,
    run: Run,
    overlay_runs: list[Run],
    shared: dict[str, Any],
    panel: str,
    version: tuple[object, ...],
) -> dict[str, Any]:
    """`shared`, and what only this panel shows. Everything for the page, if `panel` is empty. Many people may follow a
    run: what they all see of a `version` is computed once."""
    context = dict(shared)
    if panel in {"", "notices"}:
        context["quota"] = load_quota_status(run.project)
    for name in LIVE_CONTEXTS:
        if panel == name:
            key = (run.pk, run.created_at, name, get_language())
            context |= live_contexts.load(key, version, partial(LIVE_CONTEXTS[name], run, shared))
        elif not panel:
            context |= LIVE_CONTEXTS[name](run, shared)
    if panel == "heat" or (not panel and shared["show"] == "prompts"):
        context |= prompt_heatmap.build_heatmap_context(request, run)
    if panel == "overlay":
        context["offers"] = overlays.build_overlay_offers(request, run, overlay_runs)
        context["group_offers"] = overlays.build_group_offers(request, run, shared["groups"])
    return context


def build_notices_context(run: Run, shared: dict[str, Any]) -> dict[str, Any]:
    """Problems that make the curves incomplete."""
    failed = run.dumps.filter(state__in=[Dump.State.FAILED, Dump.State.UNSAFE]).order_by("-received_at")
    rejected = count_rejected_rows(run.dumps.all())
    unsafe = run.artifacts.filter(state=Artifact.State.UNSAFE).order_by("-created_at")
    attempts = list(run.attempts.order_by("number"))
    listed = list(failed[: MAX_FAILED_DUMPS + 1])
    return {
        "attempts": attempts,
        "concurrent": sum(attempt.concurrent_with_id is not None for attempt in attempts),
        "failed": listed,
        "replayable": list_replayable_files(run, {dump.step for dump in listed}),
        "unsafe": list(unsafe[:MAX_UNSAFE_ARTIFACTS]),
        "dropped": sum_dropped_items(run),
        "rejected": rejected,
        "retention": load_run_drops(run),
        "row_problems": list_row_problems(run) if rejected else [],
    }


LIVE_CONTEXTS: dict[str, Callable[[Run, dict[str, Any]], dict[str, Any]]] = {
    "notices": build_notices_context,
    "reuse": lambda run, shared: replay_summary.build_replay_context(run, shared["scale"]),
    "events": lambda run, shared: events.build_events_context(
        run, shared["scale"], with_replays=not shared["has_replays"]
    ),
}
live_contexts: NewestCache[tuple[object, ...], dict[str, Any]] = NewestCache(CacheSize.LIVE_PANELS)


def list_replayable_files(run: Run, steps: Collection[int | None]) -> set[str]:
    """The sha256 of the files that a trainer can load, although their samples may be unreadable."""
    if not steps:
        return set()
    ready = run.artifacts.filter(state=Artifact.State.READY, step__in=[step for step in steps if step is not None])
    return {file["sha256"] for files in ready.values_list("files", flat=True) for file in files.values()}


def count_delayed_dumps(run: Run) -> int:
    """The number of dumps that are not indexed; 0 if the oldest waits for less than `DELAY_BEFORE_NOTICE`."""
    dumps = run.dumps.filter(state__in=[Dump.State.RECEIVED, Dump.State.INDEXING])
    waiting = dumps.order_by().aggregate(count=Count("pk"), first=Min("received_at"))
    is_late = waiting["first"] and waiting["first"] < timezone.now() - DELAY_BEFORE_NOTICE
    return waiting["count"] if is_late else 0


def sum_dropped_items(run: Run) -> list[tuple[str, int]]:
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
    rows = run.steps.current().filter(split=split, step_kind=common.find_step_kind(run, split), samples__gt=0)
    numbers = rows.values_list("step", flat=True)
    before, after = numbers.filter(step__lte=number), numbers.filter(step__gte=number)
    candidates = [*before.order_by("-step")[:1], *after.order_by("step")[:1]]
    nearest = min(candidates, key=lambda candidate: abs(candidate - number), default=None)
    if nearest is None:
        messages.error(request, _("This run has no {split} samples yet.").format(split=split))
        return redirect("run", uid=run.uid)
    return redirect(reverse("step", args=[run.uid, nearest]) + common.StepUrlState(split=url_state.split).link())
