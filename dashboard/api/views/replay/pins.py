"""Pins: created, changed and removed by maintainers of a project."""

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiPagination, ApiView, filter_by_owner, row_or_404
from dashboard.api.serializers_replay import serialize_pin
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.models import Membership, Pin
from rollouts.pins import load_pin_statuses, remove_pin, update_pin_note
from rollouts.replay import MAX_RANGE_STEPS, pin_into_plan, pin_range

PIN_ROLE = Membership.Role.MAINTAINER


class Pins(ApiView):
    """Pins."""

    scopes = {"POST": "admin"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {"project": "A slug.", "run": "Its id.", "step": "A number.", "removed": "true: also removed pins."},
        "POST": {
            "run": "Its id.",
            "step": "A number.",
            "split": "train (default) or eval.",
            "step_kind": "What the step counts, global_step by default.",
            "attempt": "Key of the attempt. Default: the attempt whose step is shown.",
            "note": "A comment.",
            "target_step": "Also adds the pin to the plan, to be replayed at this step.",
            "plan": "Name of that plan, `default` by default.",
        },
    }

    def get(self, request: Request) -> Response:
        """Pins you may see, newest first, by `project`, `run` and `step`."""
        query = self.parse_query()
        rows = filter_by_owner(visible_pins(request), request, query).filter(**query.filters())
        if not query.boolean("removed"):
            rows = rows.filter(removed_at=None)
        paginator = ApiPagination()
        page = paginator.paginate_queryset(rows.order_by("-pk"), request)
        statuses = load_pin_statuses(page)
        return paginator.get_paginated_response([serialize_pin(pin, statuses[pin.pk]) for pin in page])

    def post(self, request: Request) -> Response:
        """Pin a step. Its files are stored, and uploaded if necessary. Repeat to change the note."""
        data = self.parse_body()
        run = permissions.run_or_404(request, data.text("run", 64), role=PIN_ROLE)
        step = data.integer("step")
        if step is None:
            raise InvalidInputError("`step` is missing: the step to pin.", "step")
        pin, created = pin_into_plan(
            run,
            step,
            self.user,
            split=data.choice("split", SPLITS, default="train"),
            step_kind=data.choice("step_kind", STEP_KINDS, default="global_step"),
            attempt=data.text("attempt", 120),
            note=data.get("note"),
            target_step=data.integer("target_step"),
            plan=data.text("plan", 80),
        )
        return Response(serialize_pin(pin), status=201 if created else 200)


class PinRange(ApiView):
    """A range of steps."""

    scopes = {"POST": "admin"}
    statuses = {"POST": ("201",)}
    takes = {
        "POST": {
            "run": "Its id.",
            "first": "The first training step to pin.",
            "last": f"The last one; at most {MAX_RANGE_STEPS} steps.",
            "target_step": "Step at which the first one is replayed; the others follow. Default: the same steps.",
            "step_kind": "What the steps count, global_step by default.",
            "note": "A comment for each pin.",
            "plan": "Name of the plan, `default` by default.",
        }
    }

    def post(self, request: Request) -> Response:
        """Pin a range of steps and add them to a plan, in one revision. Steps without files are skipped."""
        data = self.parse_body()
        run = permissions.run_or_404(request, data.text("run", 64), role=PIN_ROLE)
        first, last = data.integer("first"), data.integer("last")
        if first is None or last is None:
            raise InvalidInputError("`first` and `last` are needed: the steps to pin.", "first")
        result = pin_range(
            run,
            first,
            last,
            self.user,
            target=data.integer("target_step"),
            plan=data.text("plan", 80),
            step_kind=data.choice("step_kind", STEP_KINDS, default="global_step"),
            note=data.get("note"),
        )
        entries = [{"pin": pin.pk, "target_step": target} for target, pin in result.targets.items()]
        skipped = [{"step": step, "reason": reason} for step, reason in result.skipped.items()]
        revision = result.revision.number if result.revision else 0
        return Response({"revision": revision, "entries": entries, "skipped": skipped}, status=201)


class OnePin(ApiView):
    """One pin."""

    scopes = {"PATCH": "admin", "DELETE": "admin"}
    takes = {"PATCH": {"note": "A comment."}}

    def get(self, request: Request, pk: int) -> Response:
        """A pin, how many of its bytes are uploaded, and which nodes have the others."""
        return Response(serialize_pin(row_or_404(visible_pins(request), pk, "pin")))

    def patch(self, request: Request, pk: int) -> Response:
        """Change the `note`."""
        data = self.parse_body()
        pin = writable_pin_or_404(request, pk)
        return Response(serialize_pin(update_pin_note(pin, self.user, data.get("note", pin.note))))

    def delete(self, request: Request, pk: int) -> Response:
        """Remove a pin; 409 while the newest revision of a plan replays it."""
        self.parse_query()
        remove_pin(writable_pin_or_404(request, pk), self.user)
        return Response(status=204)


def visible_pins(request: Request) -> QuerySet[Pin]:
    rows = Pin.objects.filter(run__in=permissions.visible_runs(request))
    return rows.select_related("project", "run__project", "attempt", "user")


def writable_pin_or_404(request: Request, pk: int) -> Pin:
    pin = row_or_404(visible_pins(request), pk, "pin")
    permissions.require_role(request, pin.project, PIN_ROLE)
    return pin
