"""Steps of a run, each with its figures and its dumps."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.models import Run, StepQuerySet


class Steps(APIView):
    """Steps."""

    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "split": "train or eval.",
            "attempt": "`current` (default: nothing superseded), `all`, or one attempt's key.",
            "step": "A number.",
            "step_kind": "What the number counts.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Steps in order. `attempt` is `current` (default: no superseded ones), `all`, or one attempt's key."""
        query = parse_query_params(request, self)
        rows = find_requested_steps(permissions.run_or_404(request, uid), query)
        pages = ApiPagination()
        page = pages.paginate_queryset(rows.select_related("attempt"), request, self) or []
        return pages.get_paginated_response(serializers.serialize_steps(page))


def find_requested_steps(run: Run, query: dict[str, str]) -> StepQuerySet:
    rows: StepQuerySet = run.steps.all()
    attempt = parse_text(query.get("attempt"), "attempt", most=120) or "current"
    if attempt == "current":
        rows = rows.current()
    elif attempt != "all":
        rows = rows.filter(attempt__key=attempt)
    if split := parse_choice(query.get("split"), "split", SPLITS, default=""):
        rows = rows.filter(split=split)
    if kind := parse_choice(query.get("step_kind"), "step_kind", STEP_KINDS, default=""):
        rows = rows.filter(step_kind=kind)
    if (step := parse_integer(query.get("step"), "step")) is not None:
        rows = rows.filter(step=step)
    return rows.order_by("step", "split", "attempt__number", "pk")
