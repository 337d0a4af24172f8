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
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked, told
from dashboard.api.schema import Takes
from rolloutdeck.protocol import wire
from rollouts.errors import BadInput
from rollouts.lib.validation import number, one_of, text, yes
from rollouts.models import Membership, Pin
from rollouts.pins import pins, status
from rollouts.replay import plans

MAY_PIN = Membership.Role.MAINTAINER


class Pins(APIView):
    """Pins."""

    scopes = {"POST": "admin"}
    paged = True
    takes: ClassVar[Takes] = {
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
        query = asked(request, self)
        rows = visible(request)
        if "project" in query:
            rows = rows.filter(project=permissions.project_or_404(request, query["project"]))
        if "run" in query:
            rows = rows.filter(run=permissions.run_or_404(request, query["run"]))
        if not yes(query.get("removed", "false"), "removed"):
            rows = rows.filter(removed_at=None)
        if (step := number(query.get("step"), "step")) is not None:
            rows = rows.filter(step=step)
        pages = Pages()
        page = pages.paginate_queryset(rows.order_by("-pk"), request, self) or []
        standing = status.load_pin_statuses(page)
        return pages.get_paginated_response([serializers_replay.pin(row, standing[row.pk]) for row in page])

    def post(self, request: Request) -> Response:
        """Pin a step: what it was generated from is kept, and fetched if it is elsewhere; again changes the note."""
        data = told(request, self)
        run = permissions.run_or_404(request, text(data.get("run"), "run", most=64))
        permissions.require_role(request, run.project, MAY_PIN)
        step = number(data.get("step"), "step")
        if step is None:
            raise BadInput("`step` says which step to pin; it is missing.", "step")
        row, created = plans.pin_into_plan(
            run,
            step,
            permissions.person(request),
            split=one_of(data.get("split"), "split", wire.SPLITS, default="train"),
            step_kind=one_of(data.get("step_kind"), "step_kind", wire.STEP_KINDS, default="global_step"),
            attempt=text(data.get("attempt"), "attempt", most=120),
            note=data.get("note"),
            target_step=number(data.get("target_step"), "target_step"),
            plan=text(data.get("plan"), "plan", most=80),
        )
        return Response(serializers_replay.pin(row), status=201 if created else 200)


class OnePin(APIView):
    """One pin."""

    scopes = {"PATCH": "admin", "DELETE": "admin"}
    takes: ClassVar[Takes] = {"PATCH": {"note": "Anything."}}

    def get(self, request: Request, pk: int) -> Response:
        """A pin, how far its bytes are, and who has the others."""
        return Response(serializers_replay.pin(pin_or_404(request, pk)))

    def patch(self, request: Request, pk: int) -> Response:
        """Change the `note`."""
        data = told(request, self)
        row = writable(request, pk)
        return Response(
            serializers_replay.pin(pins.annotate(row, permissions.person(request), data.get("note", row.note)))
        )

    def delete(self, request: Request, pk: int) -> Response:
        """Remove a pin; 409 while the newest revision of a plan replays it."""
        asked(request, self)
        pins.unpin(writable(request, pk), permissions.person(request))
        return Response(status=204)


def visible(request: Request) -> QuerySet[Pin]:
    rows = Pin.objects.filter(run__in=permissions.visible_runs(request))
    return rows.select_related("project", "run__project", "attempt", "user")


def pin_or_404(request: Request, pk: int) -> Pin:
    row: Pin | None = visible(request).filter(pk=pk).first() if pk < 2**63 else None
    if row is None:
        raise Http404(f"There is no pin {pk} that you may see.")
    return row


def writable(request: Request, pk: int) -> Pin:
    row = pin_or_404(request, pk)
    permissions.require_role(request, row.project, MAY_PIN)
    return row
