"""Steps of a run, each with its statistics and its dumps."""

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiPagination, ApiView
from dashboard.api.serializers import serialize_steps
from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.models import StepQuerySet


class Steps(ApiView):
    """Steps."""

    paged = True
    takes = {
        "GET": {
            "split": "train or eval.",
            "attempt": "`current` (default: nothing superseded), `all`, or the key of an attempt.",
            "step": "A number.",
            "step_kind": "What the number counts.",
        }
    }

    def get(self, request: Request, uid: str) -> Response:
        """Steps in order. `attempt` is `current` (default: not superseded), `all`, or the key of an attempt.

        Attempts that ran at the same time have an item each for the same step, which pages add up.
        """
        query = self.parse_query()
        rows: StepQuerySet = permissions.run_or_404(request, uid).steps.select_related("attempt")
        attempt = query.text("attempt", 120) or "current"
        if attempt == "current":
            rows = rows.current()
        elif attempt != "all":
            rows = rows.filter(attempt__key=attempt)
        rows = rows.filter(**query.filters(split=SPLITS, step_kind=STEP_KINDS))
        paginator = ApiPagination()
        page = paginator.paginate_queryset(rows.order_by("step", "split", "attempt__number", "pk"), request)
        return paginator.get_paginated_response(serialize_steps(page))
