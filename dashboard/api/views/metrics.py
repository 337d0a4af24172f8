"""Metrics of a run: points in, curves out."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rolloutdeck.protocol import STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.live import notify_run_changed
from rollouts.metrics import append_points, list_metric_names, load_curves
from rollouts.samples import MetricPoint

MAX_POINTS = 10_000  # steps in one request
MAX_METRIC_NAMES = 200  # curves in one answer


class Metrics(APIView):
    """Curves."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[AcceptedParams] = {
        "GET": {
            "name": "A metric; may be repeated.",
            "max_points": "Thin to this many, keeping extremes.",
            "attempt": "`current` (default: nothing superseded), `all`, or one attempt's key.",
        },
        "POST": {
            "attempt": "Key of the launch.",
            "points": "[{step, step_kind?, time, values: {name: number or null}}]",
            "wire": "Version of the client's words.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """The curves named by `name` (repeated), thinned to `max_points` keeping extremes; without `name`, the names.

        `attempt` is `current` (default), `all` or one attempt's key.
        """
        query = parse_query_params(request, self)
        run = permissions.run_or_404(request, uid)
        names = [parse_text(name, "name", most=300) for name in request.query_params.getlist("name")]
        if len(names) > MAX_METRIC_NAMES:
            raise InvalidInputError(f"At most {MAX_METRIC_NAMES} names in one request.", "name")
        most = parse_integer(query.get("max_points"), "max_points", most=1_000_000) or 0
        attempt = parse_text(query.get("attempt"), "attempt", most=120) or "current"
        if not names:
            return Response({"names": list_metric_names(run, "" if attempt in ("current", "all") else attempt)})
        curves = load_curves([run], names, max_points=most, attempt=attempt)[run.uid]
        return Response({"series": curves})

    def post(self, request: Request, uid: str) -> Response:
        """Add points: `{attempt, points: [{step, step_kind?, time, values: {name: number or null}}]}`."""
        data = parse_json_body(request, self)
        points = points_of(data.get("points"))
        run = permissions.find_or_open_requested_run(request, uid)
        attempt = get_or_create_attempt(run, parse_text(data.get("attempt"), "attempt", most=120))
        stored = append_points(run, attempt, points)
        record_activity(run, attempt)
        notify_run_changed(run)
        return Response({"points": stored})


def points_of(rows: Any) -> list[MetricPoint]:
    """Raises BadInput that says which point is wrong."""
    if not isinstance(rows, list) or len(rows) > MAX_POINTS:
        raise InvalidInputError(f"`points` must be a list of at most {MAX_POINTS} points.", "points")
    return [point_of(row, f"points[{at}]") for at, row in enumerate(rows)]


def point_of(row: Any, place: str) -> MetricPoint:
    if not isinstance(row, dict):
        raise InvalidInputError(f"`{place}` must be an object with step and values.", place)
    step, time, values = row.get("step"), row.get("time"), row.get("values")
    if (step := parse_integer(step, f"{place}.step")) is None:
        raise InvalidInputError(f"`{place}.step` is missing.", f"{place}.step")
    if time is not None and not is_number(time):
        raise InvalidInputError(f"`{place}.time` must be seconds since 1970.", f"{place}.time")
    if not isinstance(values, dict):
        raise InvalidInputError(f"`{place}.values` must be {{name: number or null}}.", f"{place}.values")
    for name, value in values.items():
        if value is not None and not is_number(value):
            raise InvalidInputError(f"`{place}.values` holds {name[:80]!r}, which is no number.", f"{place}.values")
    kind = parse_choice(row.get("step_kind"), f"{place}.step_kind", STEP_KINDS, default="global_step")
    return MetricPoint(step, {name: as_float(value) for name, value in values.items()}, kind, as_float(time))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def as_float(value: Any) -> float | None:
    """Also of an integer beyond what a float holds."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None
