"""Pins: made, changed and removed by maintainers of a project."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import QuerySet
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers_replay
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.lib import parse_boolean, parse_choice, parse_integer, parse_text
from rollouts.models import Membership, Pin
from rollouts.pins import load_pin_statuses, remove_pin, update_pin_note
from rollouts.replay import pin_into_plan

PIN_ROLE = Membership.Role.MAINTAINER


class Pins(APIView):
    """Pins."""

    scopes = {"POST": "admin"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "project": "A slug.",
            "run": "Its id.",
            "step": "A number.",
            "removed": "true: also those that were removed.",
        },
        "POST": {
            "run": "Its id.",
            "step": "A number.",
            "split": "train (default) or eval.",
            "step_kind": "What the step counts; global_step unless told.",
            "attempt": "Key of the launch; the one whose step is shown unless told.",
            "note": "Anything.",
            "target_step": "Also puts it into the plan, to be replayed at this step.",
            "plan": "Name of that plan; `default` unless told.",
        },
    }

    def get(self, request: Request) -> Response:
        """Pins you may see, newest first, by `project`, `run` and `step`."""
        query = parse_query_params(request, self)
        rows = visible_pins(request)
        if "project" in query:
            rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
        if "run" in query:
            rows = rows.filter(run=permissions.run_or_404(request, query["run"]))
        if not parse_boolean(query.get("removed", "false"), "removed"):
            rows = rows.filter(removed_at=None)
        if (step := parse_integer(query.get("step"), "step")) is not None:
            rows = rows.filter(step=step)
        pages = ApiPagination()
        page = pages.paginate_queryset(rows.order_by("-pk"), request, self) or []
        standing = load_pin_statuses(page)
        return pages.get_paginated_response([serializers_replay.serialize_pin(row, standing[row.pk]) for row in page])

    def post(self, request: Request) -> Response:
        """Pin a step: what it was generated from is kept, and fetched if it is elsewhere; again changes the note."""
        data = parse_json_body(request, self)
        run = permissions.run_or_404(request, parse_text(data.get("run"), "run", most=64))
        permissions.require_role(request, run.project, PIN_ROLE)
        step = parse_integer(data.get("step"), "step")
        if step is None:
            raise InvalidInputError("`step` says which step to pin; it is missing.", "step")
        row, created = pin_into_plan(
            run,
            step,
            permissions.require_user(request),
            split=parse_choice(data.get("split"), "split", SPLITS, default="train"),
            step_kind=parse_choice(data.get("step_kind"), "step_kind", STEP_KINDS, default="global_step"),
            attempt=parse_text(data.get("attempt"), "attempt", most=120),
            note=data.get("note"),
            target_step=parse_integer(data.get("target_step"), "target_step"),
            plan=parse_text(data.get("plan"), "plan", most=80),
        )
        return Response(serializers_replay.serialize_pin(row), status=201 if created else 200)


class OnePin(APIView):
    """One pin."""

    scopes = {"PATCH": "admin", "DELETE": "admin"}
    takes: ClassVar[AcceptedParams] = {"PATCH": {"note": "Anything."}}

    def get(self, request: Request, pk: int) -> Response:
        """A pin, how far its bytes are, and who has the others."""
        return Response(serializers_replay.serialize_pin(pin_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """Change the `note`."""
        data = parse_json_body(request, self)
        row = writable_pin_or_404(request, pk)
        return Response(
            serializers_replay.serialize_pin(
                update_pin_note(row, permissions.require_user(request), data.get("note", row.note))
            )
        )

    def delete(self, request: Request, pk: int) -> Response:
        """Remove a pin; 409 while the newest revision of a plan replays it."""
        parse_query_params(request, self)
        remove_pin(writable_pin_or_404(request, pk), permissions.require_user(request))
        return Response(status=204)


def visible_pins(request: Request) -> QuerySet[Pin]:
    rows = Pin.objects.filter(run__in=permissions.visible_runs(request))
    return rows.select_related("project", "run__project", "attempt", "user")


def pin_or_404(request: Request, pk: int) -> Pin:
    row: Pin | None = visible_pins(request).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no pin {pk} that you may see.")
    return row


def writable_pin_or_404(request: Request, pk: int) -> Pin:
    row = pin_or_404(request, pk)
    permissions.require_role(request, row.project, PIN_ROLE)
    return row
