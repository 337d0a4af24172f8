"""What came of a plan at each step of a run."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers, serializers_replay
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked, told
from dashboard.api.schema import Takes
from dashboard.api.views.runs import arriving
from rolloutdeck.protocol import wire
from rollouts.errors import BadInput
from rollouts.lib.validation import number, one_of, text, yes
from rollouts.replay import outcomes


class Replays(APIView):
    """Replay events of a run."""

    scopes = {"POST": "ingest"}
    paged = True
    takes: ClassVar[Takes] = {
        "GET": {
            "step": "A number.",
            "outcome": f"{', '.join(wire.OUTCOMES)}.",
            "strip": "true: one cell per step, and totals, instead of events.",
        },
        "POST": {
            "attempt": "Key of the launch.",
            "step": "A number.",
            "step_kind": "What the step counts; global_step unless told.",
            "outcome": "hit (replayed), miss (generated) or refused (generated, see reason).",
            "pin": "Its id; the one that the plan has there unless told.",
            "rows": "How many were loaded.",
            "seconds": "How long loading took.",
            "reason": "Why it was refused, or generated.",
            "wire": "Version of the client's words.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """Events in step order; `strip=true` for one cell per step with totals."""
        query = asked(request, self)
        run = permissions.run_or_404(request, uid)
        if yes(query.get("strip", "false"), "strip"):
            return Response(serializers_replay.strip(outcomes.strip(run)))
        rows = run.replays.select_related("attempt", "pin__run").order_by("step", "attempt__number", "pk")
        if (step := number(query.get("step"), "step")) is not None:
            rows = rows.filter(step=step)
        if outcome := one_of(query.get("outcome"), "outcome", wire.OUTCOMES, default=""):
            rows = rows.filter(outcome=outcome)
        pages = Pages()
        page = pages.paginate_queryset(rows, request, self) or []
        return pages.get_paginated_response([serializers.replay(row) for row in page])

    def post(self, request: Request, uid: str) -> Response:
        """Tell what happened at a step; again for the same step replaces it."""
        data = told(request, self)
        step = number(data.get("step"), "step")
        if step is None:
            raise BadInput("`step` says which step this is of; it is missing.", "step")
        row, created = outcomes.report(
            arriving(request, uid),
            text(data.get("attempt"), "attempt", most=120),
            step,
            data.get("outcome", ""),
            step_kind=one_of(data.get("step_kind"), "step_kind", wire.STEP_KINDS, default="global_step"),
            pin=number(data.get("pin"), "pin"),
            rows=data.get("rows"),
            seconds=data.get("seconds"),
            reason=data.get("reason"),
        )
        return Response(serializers.replay(row), status=201 if created else 200)
