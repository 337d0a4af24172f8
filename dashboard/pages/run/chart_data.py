"""The data of the overview's charts as JSON: layout, curves, overlaid runs and groups."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import orjson
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.translation import get_language
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.run import overlays
from rollouts.charts import load_arrangement
from rollouts.lib import CacheSize, NewestCache
from rollouts.metrics import (
    ChartLayout,
    add_time_axis,
    arrange_charts,
    list_metric_names,
    load_curves,
    select_readable_metrics,
)
from rollouts.models import BlindQueues, Run
from rollouts.runs import RunGroup, compute_group_curves

MAX_CURVE_POINTS = 500
MAX_METRIC_NAMES = 400
chart_cache: NewestCache[tuple[object, ...], bytes] = NewestCache(CacheSize.CHART_BYTES, len)


@login_required
@require_safe
def chart_data_view(request: HttpRequest, uid: str) -> HttpResponse:
    """{board, default, groups, merged, constant, name, colour, curves, grouped, over, left, axis, untimed}.

    The layout of `rollouts.metrics.arrange_charts`; `board` is how the project arranges it. The points by metric of the
    run and, in `over`, of each run in `?runs=` and each group in `?groups=`; `left` metrics are left out. A group has
    `members`, and its curves are means with `low` and `high`; with `?band=0` and on the time axis each of its runs is
    drawn by itself. `grouped` says that the run is drawn as a part of a group.

    With `?x=time` each curve also has `hours`, and `untimed` names the metrics that have no times. If no metric has
    any, `axis` is `step`.
    """
    run = permissions.run_or_404(request, uid)
    url_state = common.StepUrlState.from_query(request.GET)
    common.attempt_or_404(run, url_state.attempt)
    overlay_runs, groups = overlays.find_overlay_runs(request, run), overlays.find_overlay_groups(request, run)
    board = load_arrangement(run.project)
    shown = [run, *overlay_runs, *(each for group in groups for each in group.runs)]
    blind = common.load_blind_queues(request)
    versions = [(each.pk, each.version) for each in shown]
    etag = common.compute_etag(request, "charts", (versions, board.version, blind.queues))
    if request.headers.get("If-None-Match", "") == etag:
        return common.set_cache_headers(HttpResponseNotModified(), etag)
    timed = get_chart_axis(request) == "time"
    source = ChartSource(run, overlay_runs, groups, blind, with_bands=not timed and request.GET.get("band") != "0")
    data = source.encode(url_state.attempt or "current", timed=timed)
    body = b'{"board":' + orjson.dumps(board.serialize()) + b"," + data.removeprefix(b"{")
    return common.set_cache_headers(HttpResponse(body, content_type="application/json"), etag)


def get_chart_axis(request: HttpRequest) -> str:
    return "time" if request.GET.get("x") == "time" else "step"


class ChartSource:
    """What the charts are drawn from: the page's run, other runs, and groups as lines with bands or as single runs."""

    def __init__(
        self, run: Run, others: Sequence[Run], groups: Sequence[RunGroup], blind: BlindQueues, *, with_bands: bool
    ) -> None:
        self.run, self.others, self.groups, self.with_bands = run, list(others), list(groups), with_bands
        self.blind = blind
        self.colours = overlays.assign_colours([run, *others], groups)
        members = {} if with_bands else {each.pk: each for group in groups for each in group.runs}
        self.singles = [each for each in members.values() if each not in (run, *others)]
        for group in groups:
            for each in group.runs:
                self.colours.setdefault(each.pk, self.colours[group.key])

    @property
    def runs(self) -> list[Run]:
        return [self.run, *self.others, *self.singles]

    def encode(self, attempt: str, *, timed: bool) -> bytes:
        """Cached by the versions of the runs, which name their content."""
        groups = [(group.key, [each.pk for each in group.runs]) for group in self.groups]
        everything = [*self.runs, *(each for group in self.groups for each in group.runs)]
        ids = tuple((each.pk, each.created_at) for each in everything)
        key = (ids, str(groups), self.with_bands, attempt, timed, get_language(), bool(self.blind.queues))
        versions = [(each.version, each.name) for each in everything]
        return chart_cache.load(key, versions, lambda: orjson.dumps(self.build(attempt, timed=timed)))

    def build(self, attempt: str, *, timed: bool) -> dict[str, Any]:
        bands = self.groups if self.with_bands else []
        sources = [*self.runs, *(each for group in bands for each in group.runs)]
        known = {name for each in sources for name in list_metric_names(each)}
        names = select_readable_metrics(sorted(known), self.blind)
        shown = names[:MAX_METRIC_NAMES]
        curves: dict[str, Any] = dict(load_curves(self.run, shown, max_points=MAX_CURVE_POINTS, attempt=attempt))
        if others := self.runs[1:]:  # the attempts of other runs have other keys
            other_attempt = "all" if attempt == "all" else "current"
            curves |= load_curves(others, shown, max_points=MAX_CURVE_POINTS, attempt=other_attempt)
        curves |= {group.key: compute_group_curves(group.runs, shown, MAX_CURVE_POINTS) for group in bands}
        layout = arrange_charts(shown, list(curves.values()))
        axis, untimed = "step", list[str]()
        if timed:
            with_times = add_time_axis(self.runs, curves)
            found = {name for by_name in with_times.values() for name, own in by_name.items() if own}
            untimed = sorted({name for by_name in curves.values() for name, own in by_name.items() if own} - found)
            curves, axis = (dict(with_times), "time") if found else (curves, "step")
        plotted = {
            uid: {name: own for name, own in by_name.items() if own and name not in layout.constant}
            for uid, by_name in curves.items()
        }
        over = [self.describe(each.pk, each.uid, each.name, plotted) for each in self.runs[1:]]
        over += [
            {
                **self.describe(group.key, group.key, group.name, plotted),
                "members": [{"uid": each.uid, "name": each.name} for each in group.runs],
            }
            for group in bands
        ]
        own = self.describe(self.run.pk, self.run.uid, self.run.name, plotted)
        state = {"axis": axis, "untimed": untimed, "left": max(0, len(names) - MAX_METRIC_NAMES)}
        return {
            **serialize_layout(layout), **own, **state, "over": over,
            "grouped": any(self.run in group.runs for group in bands),
        }  # fmt: skip

    def describe(self, key: int | str, uid: str, name: str, plotted: dict[str, Any]) -> dict[str, Any]:
        return {"uid": uid, "name": name, "colour": self.colours[key], "curves": plotted[uid]}


def serialize_layout(layout: ChartLayout) -> dict[str, Any]:
    """Translates the titles of the default charts. Names of metrics are not translated."""
    fields = asdict(layout)
    for chart in fields["default"]:
        chart["title"] = _(chart["title"])
    return fields
