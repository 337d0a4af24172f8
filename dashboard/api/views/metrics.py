"""Metrics of a run: writes points, returns curves."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from rolloutdeck.protocol import STEP_KINDS
from rollouts.errors import InvalidInputError
from rollouts.ingest import get_or_create_attempt, record_activity
from rollouts.lib import parse_choice, parse_integer, parse_text
from rollouts.live import notify_run_changed
from rollouts.metrics import MIN_ROWS_TO_COMPACT, append_points, list_metric_names, load_curves, select_readable_metrics
from rollouts.models import Queue
from rollouts.samples import MetricPoint
from workers import dispatch

MAX_POINTS = 10_000  # in one request
MAX_METRIC_NAMES = 200  # in one response


class Metrics(ApiView):
    """Curves."""

    scopes = {"POST": "ingest"}
    takes = {
        "GET": {
            "name": "A metric; may be repeated.",
            "max_points": "Downsample to this number of points; extremes are kept.",
            "attempt": "`current` (default: nothing superseded), `all`, or the key of an attempt.",
        },
        "POST": {
            "attempt": "Key of the attempt.",
            "points": "[{step, step_kind?, time, values: {name: number or null}}]",
            "wire": "Protocol version of the client.",
        },
    }

    def get(self, request: Request, uid: str) -> Response:
        """The curves of each `name`, downsampled to `max_points`. Without `name`: the names."""
        query = self.parse_query()
        run = permissions.run_or_404(request, uid)
        names = [parse_text(name, "name", max_chars=300) for name in request.query_params.getlist("name")]
        if len(names) > MAX_METRIC_NAMES:
            raise InvalidInputError(f"At most {MAX_METRIC_NAMES} names in one request.", "name")
        max_points = query.integer("max_points", maximum=1_000_000) or 0
        attempt = query.text("attempt", 120) or "current"
        blind = Queue.objects.blind_for(self.user.pk)
        if not names:
            known = list_metric_names(run, "" if attempt in ("current", "all") else attempt)
            return Response({"names": select_readable_metrics(known, blind)})
        names = select_readable_metrics(names, blind)
        return Response({"series": load_curves([run], names, max_points=max_points, attempt=attempt)[run.uid]})

    def post(self, request: Request, uid: str) -> Response:
        """Add points: `{attempt, points: [{step, step_kind?, time, values: {name: number or null}}]}`."""
        data = self.parse_body()
        points = parse_points(data.get("points"))
        run = permissions.find_or_open_run(request, uid, request.headers)
        attempt = get_or_create_attempt(run, data.text("attempt", 120))
        count = append_points(run, attempt, points)
        record_activity(run, attempt)
        notify_run_changed(run)
        if count >= MIN_ROWS_TO_COMPACT:  # else the sweep finds them: charts of many rows are slow until then
            dispatch.send_now("compact_series", run.pk)
        return Response({"points": count})


def parse_points(rows: Any) -> list[MetricPoint]:
    """Raises InvalidInputError, which names the wrong point."""
    if not isinstance(rows, list) or len(rows) > MAX_POINTS:
        raise InvalidInputError(f"`points` must be a list of at most {MAX_POINTS} points.", "points")
    return [parse_point(row, f"points[{index}]") for index, row in enumerate(rows)]


def parse_point(row: Any, field: str) -> MetricPoint:
    if not isinstance(row, dict):
        raise InvalidInputError(f"`{field}` must be an object with step and values.", field)
    time, values = row.get("time"), row.get("values")
    if (step := parse_integer(row.get("step"), f"{field}.step")) is None:
        raise InvalidInputError(f"`{field}.step` is missing.", f"{field}.step")
    if not is_number_or_null(time):
        raise InvalidInputError(f"`{field}.time` must be seconds since 1970.", f"{field}.time")
    if not isinstance(values, dict):
        raise InvalidInputError(f"`{field}.values` must be {{name: number or null}}.", f"{field}.values")
    for name, value in values.items():
        if not is_number_or_null(value):
            raise InvalidInputError(f"`{field}.values`: {name[:80]!r} is not a number.", f"{field}.values")
    kind = parse_choice(row.get("step_kind"), f"{field}.step_kind", STEP_KINDS, default="global_step")
    return MetricPoint(step, {name: to_float(value) for name, value in values.items()}, kind, to_float(time))


def is_number_or_null(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def to_float(value: Any) -> float | None:
    """None also for an integer that is too large for a float."""
    try:
        return None if value is None else float(value)
    except OverflowError:
        return None
