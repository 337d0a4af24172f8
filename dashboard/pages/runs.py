"""The runs of all projects that a person may see. One run is listed too: a list with one row says where you are."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import access
from dashboard.pages import panels
from dashboard.pages.sparks import sparks
from rolloutdeck.trainers import TRAINERS
from rollouts.models import Run

PANELS = {"runs": "runs/table.html"}
MOST = 100


@login_required
@require_safe
def runs(request: HttpRequest) -> HttpResponse:
    """`?project=` narrows to one, `?name=` to runs whose name holds it."""
    found = access.visible_runs(request).select_related("project").order_by("-seen_at")
    if project := request.GET.get("project", "").replace("\0", ""):
        found = found.filter(project__slug=project)
    if name := request.GET.get("name", "").replace("\0", ""):
        found = found.filter(name__icontains=name)
    shown = list(found[: MOST + 1])
    state = [(run.uid, run.version, run.status) for run in shown]
    return panels.answer(request, "runs/page.html", PANELS, lambda: context(request, shown, state), *state)


def context(request: HttpRequest, shown: list[Run], state: list[tuple[str, int, str]]) -> dict[str, Any]:
    found = sparks(shown[:MOST])
    return {
        "lines": [(run, found[run.pk], status) for run, (_, _, status) in zip(shown[:MOST], state, strict=False)],
        "truncates": any(spark.last and spark.last.truncated is not None for spark in found.values()),
        "more": len(shown) > MOST,
        "projects": list(access.visible_projects(request).order_by("slug")),
        "project": request.GET.get("project", ""),
        "name": request.GET.get("name", ""),
        "empty": not shown and not request.GET,
        "address": settings.PUBLIC_URL,
        "trainer": TRAINERS[0],
    }
