"""Steps of a run, each with its figures and its dumps."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked
from dashboard.api.schema import Takes
from rolloutdeck.protocol import wire
from rollouts.lib.validation import number, one_of, text
from rollouts.models import Run, StepQuerySet


class Steps(APIView):
    """Steps."""

    paged = True
    takes: ClassVar[Takes] = {
        "GET": {
            "split": "train or eval.",
            "attempt": "`current` (default: nothing superseded), `all`, or one attempt's key.",
            "step": "A number.",
            "step_kind": "What the number counts.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Steps in order. `attempt` is `current` (default: no superseded ones), `all`, or one attempt's key."""
        query = asked(request, self)
        rows = listed(permissions.run_or_404(request, uid), query)
        pages = Pages()
        page = pages.paginate_queryset(rows.select_related("attempt"), request, self) or []
        return pages.get_paginated_response(serializers.steps(page))


def listed(run: Run, query: dict[str, str]) -> StepQuerySet:
    rows: StepQuerySet = run.steps.all()
    attempt = text(query.get("attempt"), "attempt", most=120) or "current"
    if attempt == "current":
        rows = rows.current()
    elif attempt != "all":
        rows = rows.filter(attempt__key=attempt)
    if split := one_of(query.get("split"), "split", wire.SPLITS, default=""):
        rows = rows.filter(split=split)
    if kind := one_of(query.get("step_kind"), "step_kind", wire.STEP_KINDS, default=""):
        rows = rows.filter(step_kind=kind)
    if (step := number(query.get("step"), "step")) is not None:
        rows = rows.filter(step=step)
    return rows.order_by("step", "split", "attempt__number", "pk")
