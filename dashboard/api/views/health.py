"""Is it alive, and how is it doing: `/healthz` for load balancers, `/metrics` for Prometheus."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from urllib.parse import urlsplit

from django.conf import settings
from django.db import Error, connection
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from rest_framework.exceptions import AuthenticationFailed

from dashboard import permissions
from rollouts.models import Dump, Flag, Run, Sample, Step
from rollouts.storage import count_free_bytes

log = logging.getLogger(__name__)

ServerMetric = tuple[str, str, str, Iterable[tuple[str, float]]]  # name, type, help, [(labels, value)]


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while this process can answer and reach its database."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:  # it names host and user, and anybody may ask
        log.exception("The database does not answer.")
        return JsonResponse({"status": "down", "database": "does not answer; the server's log says why"}, status=503)
    return JsonResponse({"status": "ok"})


@require_safe
def prometheus_metrics_view(request: HttpRequest) -> HttpResponse:
    """Prometheus text. Needs a token with the scope read, unless the server is bound to loopback."""
    if not is_loopback() and not has_read_token(request):
        denied = HttpResponse(
            "Send `Authorization: Bearer <token>` with the scope read.\n", status=401, content_type="text/plain"
        )
        denied["WWW-Authenticate"] = "Bearer"
        return denied
    return HttpResponse(
        "".join(map(format_prometheus_metric, collect_server_metrics())),
        content_type="text/plain; version=0.0.4; charset=utf-8",
    )


def is_loopback() -> bool:
    return urlsplit(settings.PUBLIC_URL).hostname in ("127.0.0.1", "localhost", "::1")


def has_read_token(request: HttpRequest) -> bool:
    try:
        return permissions.authenticate_token(request.headers.get("Authorization", "")).allows("read")
    except AuthenticationFailed:
        return False


def collect_server_metrics() -> list[ServerMetric]:
    states = dict(Dump.objects.values_list("state").annotate(Count("pk")).order_by("state"))
    waiting = Dump.objects.filter(state__in=(Dump.State.RECEIVED, Dump.State.INDEXING))
    oldest = waiting.aggregate(oldest=Min("received_at"))["oldest"]
    age = (timezone.now() - oldest).total_seconds() if oldest else 0.0
    return [
        (
            "dumps",
            "gauge",
            "Dumps by state.",
            [(f'{{state="{state}"}}', states.get(state, 0)) for state in Dump.State.values],
        ),
        ("oldest_unindexed_seconds", "gauge", "Age of the oldest dump that is not indexed yet.", [("", age)]),
        ("runs", "gauge", "Runs, the bin included.", [("", Run.objects.count())]),
        ("steps", "gauge", "Steps, superseded ones included.", [("", Step.objects.count())]),
        ("samples", "gauge", "Samples, those of older versions included.", [("", Sample.objects.count())]),
        ("flags", "gauge", "Flags that stand.", [("", Flag.objects.filter(withdrawn_at=None).count())]),
        ("free_bytes", "gauge", "Room left on the data volume.", [("", count_free_bytes())]),
    ]


def format_prometheus_metric(figure: ServerMetric) -> str:
    name, kind, explained, values = figure
    lines = [f"# HELP rolloutdeck_{name} {explained}", f"# TYPE rolloutdeck_{name} {kind}"]
    return "\n".join([*lines, *(f"rolloutdeck_{name}{labels} {value}" for labels, value in values)]) + "\n"
