"""What came of a plan at each step of a run."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers, serializers_replay
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import REPLAY_OUTCOMES, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text
from rollouts.replay import load_replay_timeline, record_replay_outcome


class Replays(APIView):
    """Replay events of a run."""

    scopes = {"POST": "ingest"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "step": "A number.",
            "outcome": f"{', '.join(REPLAY_OUTCOMES)}.",
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
        query = parse_query_params(request, self)
        run = permissions.run_or_404(request, uid)
        if parse_boolean(query.get("strip", "false"), "strip"):
            return Response(serializers_replay.serialize_replay_timeline(load_replay_timeline(run)))
        rows = run.replays.select_related("attempt", "pin__run").order_by("step", "attempt__number", "pk")
        if (step := parse_integer(query.get("step"), "step")) is not None:
            rows = rows.filter(step=step)
        if outcome := parse_choice(query.get("outcome"), "outcome", REPLAY_OUTCOMES, default=""):
            rows = rows.filter(outcome=outcome)
        pages = ApiPagination()
        page = pages.paginate_queryset(rows, request, self) or []
        return pages.get_paginated_response([serializers.serialize_replay(row) for row in page])

    def post(self, request: Request, uid: str) -> Response:
        """Tell what happened at a step; again for the same step replaces it."""
        data = parse_json_body(request, self)
        step = parse_integer(data.get("step"), "step")
        if step is None:
            raise InvalidInputError("`step` says which step this is of; it is missing.", "step")
        row, created = record_replay_outcome(
            permissions.find_or_open_requested_run(request, uid),
            parse_text(data.get("attempt"), "attempt", most=120),
            step,
            data.get("outcome", ""),
            step_kind=parse_choice(data.get("step_kind"), "step_kind", STEP_KINDS, default="global_step"),
            pin=parse_integer(data.get("pin"), "pin"),
            rows=data.get("rows"),
            seconds=data.get("seconds"),
            reason=data.get("reason"),
        )
        return Response(serializers.serialize_replay(row), status=201 if created else 200)
