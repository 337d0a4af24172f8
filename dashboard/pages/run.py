"""A run's overview: its metrics as charts, its state, and what went wrong with what arrived."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.views.decorators.http import require_safe

from dashboard import access
from dashboard.pages import opened, panels, reuse, strip
from dashboard.pages.ask import Ask
from rollouts import charts as charting
from rollouts import series
from rollouts.models import Dump, Run

PANELS = {
    "strip": "parts/strip.html",
    "alive": "parts/alive.html",
    "notices": "run/notices.html",
    "reuse": "run/reuse.html",
}
MOST_POINTS = 500
MOST_NAMES = 400
MOST_SHOWN = 20


@login_required
@require_safe
def run(request: HttpRequest, uid: str) -> HttpResponse:
    """`?attempt=all` draws older attempts too, faint; an attempt's key draws that one alone."""
    one = access.run_or_404(request, uid)
    status = one.status
    return panels.answer(
        request, "run/page.html", PANELS, lambda: context(request, one) | {"status": status}, one.version, status
    )


def context(request: HttpRequest, one: Run) -> dict[str, Any]:
    ask = Ask.of(request.GET)
    opened.attempt_of(one, ask.attempt)
    track = strip.of(one, ask.split or strip.first_split(one))
    shown: dict[str, Any] = {
        "run": one, "project": one.project, "ask": ask, "split": track.split, "strip": track, "current": None,
        "tab": "overview",
    }  # fmt: skip
    panel = panels.target(request)
    if panel in {"", "notices"}:
        shown |= notices(one)
    if panel in {"", "reuse"}:
        shown |= reuse.shown(one)
    return shown


def notices(one: Run) -> dict[str, Any]:
    """What a person should know before believing the curves."""
    attempts = list(one.attempts.order_by("number"))
    failed = one.dumps.filter(state__in=[Dump.State.FAILED, Dump.State.UNSAFE]).order_by("-received_at")
    waiting = one.dumps.filter(state__in=[Dump.State.RECEIVED, Dump.State.INDEXING]).count()
    return {
        "attempts": attempts,
        "failed": list(failed[: MOST_SHOWN + 1]),
        "waiting": waiting,
        "dropped": dropped(one),
    }


def dropped(one: Run) -> list[tuple[str, int]]:
    """[(reason, count)] over all spools."""
    counts: dict[str, int] = {}
    for by_reason in one.dropped.values():
        for reason, count in by_reason.items() if isinstance(by_reason, dict) else ():
            counts[reason] = counts.get(reason, 0) + int(count)
    return sorted(counts.items())


@login_required
@require_safe
def charts(request: HttpRequest, uid: str) -> HttpResponse:
    """{default, groups, constant, curves}: the layout of `rollouts.charts`, and the points of all that it draws."""
    one = access.run_or_404(request, uid)
    ask = Ask.of(request.GET)
    opened.attempt_of(one, ask.attempt)
    etag = panels.mark(request, "charts", (one.version,))
    if request.headers.get("If-None-Match", "") == etag:
        return panels.finished(HttpResponseNotModified(), etag)
    names = series.names(one)[:MOST_NAMES]
    curves = series.read(one, names, max_points=MOST_POINTS, attempt=ask.attempt or "current")[one.uid]
    layout = charting.arrange(names, [curves])
    drawn = {name: found for name, found in curves.items() if name not in layout.constant}
    body = orjson.dumps({**asdict(layout), "curves": drawn})
    return panels.finished(HttpResponse(body, content_type="application/json"), etag)
