"""What arrives, newest first, over all runs that a person may see."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from dashboard import access
from dashboard.pages import panels
from rollouts.models import Step

PANELS = {"arrivals": "live/arrivals.html"}
MOST = 50


@login_required
@require_safe
def live(request: HttpRequest) -> HttpResponse:
    seen = access.visible_runs(request)
    state = seen.aggregate(seen=Max("seen_at"), version=Max("version"))
    return panels.answer(request, "live/page.html", PANELS, lambda: context(request), state["seen"], state["version"])


def context(request: HttpRequest) -> dict[str, Any]:
    steps = Step.objects.current().filter(run__in=access.visible_runs(request), samples__gt=0)
    return {"arrived": list(steps.select_related("run__project").order_by("-created_at", "-pk")[:MOST])}
