"""Metrics of a run: points in, curves out."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api.parsers import asked, told
from dashboard.api.schema import Takes
from dashboard.api.views.runs import arriving
from rolloutdeck.protocol import wire
from rollouts.errors import BadInput
from rollouts.ingest import attempts
from rollouts.lib.validation import number, one_of, text
from rollouts.live import notifications
from rollouts.metrics import series
from rollouts.samples.record import Point

MOST_POINTS = 10_000  # steps in one request
MOST_NAMES = 200  # curves in one answer


class Metrics(APIView):
    """Curves."""

    scopes = {"POST": "ingest"}
    takes: ClassVar[Takes] = {
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
        query = asked(request, self)
        run = permissions.run_or_404(request, uid)
        names = [text(name, "name", most=300) for name in request.query_params.getlist("name")]
        if len(names) > MOST_NAMES:
            raise BadInput(f"At most {MOST_NAMES} names in one request.", "name")
        most = number(query.get("max_points"), "max_points", most=1_000_000) or 0
        attempt = text(query.get("attempt"), "attempt", most=120) or "current"
        if not names:
            return Response({"names": series.names(run, "" if attempt in ("current", "all") else attempt)})
        curves = series.read([run], names, max_points=most, attempt=attempt)[run.uid]
        return Response({"series": curves})

    def post(self, request: Request, uid: str) -> Response:
        """Add points: `{attempt, points: [{step, step_kind?, time, values: {name: number or null}}]}`."""
        data = told(request, self)
        points = points_of(data.get("points"))
        run = arriving(request, uid)
        attempt = attempts.attempt_of(run, text(data.get("attempt"), "attempt", most=120))
        stored = series.append(run, attempt, points)
        attempts.seen(run, attempt)
        notifications.changed(run)
        return Response({"points": stored})


def points_of(rows: Any) -> list[Point]:
    """Raises BadInput that says which point is wrong."""
    if not isinstance(rows, list) or len(rows) > MOST_POINTS:
        raise BadInput(f"`points` must be a list of at most {MOST_POINTS} points.", "points")
    return [point_of(row, f"points[{at}]") for at, row in enumerate(rows)]


def point_of(row: Any, place: str) -> Point:
    if not isinstance(row, dict):
        raise BadInput(f"`{place}` must be an object with step and values.", place)
    step, time, values = row.get("step"), row.get("time"), row.get("values")
    if (step := number(step, f"{place}.step")) is None:
        raise BadInput(f"`{place}.step` is missing.", f"{place}.step")
    if time is not None and not is_number(time):
        raise BadInput(f"`{place}.time` must be seconds since 1970.", f"{place}.time")
    if not isinstance(values, dict):
        raise BadInput(f"`{place}.values` must be {{name: number or null}}.", f"{place}.values")
    for name, value in values.items():
        if value is not None and not is_number(value):
            raise BadInput(f"`{place}.values` holds {name[:80]!r}, which is no number.", f"{place}.values")
    kind = one_of(row.get("step_kind"), f"{place}.step_kind", wire.STEP_KINDS, default="global_step")
    return Point(step, {name: as_float(value) for name, value in values.items()}, kind, as_float(time))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def as_float(value: Any) -> float | None:
    """Also of an integer beyond what a float holds."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None
