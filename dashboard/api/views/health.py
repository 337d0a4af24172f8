"""Health and statistics of the server: `/healthz` for load balancers, `/metrics` for Prometheus."""

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

Gauge = tuple[str, str, Iterable[tuple[str, float]]]  # name, help, [(labels, value)]


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while this process answers and reaches its database."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:  # its text has host and user, and this URL is public
        log.exception("The database does not answer.")
        return JsonResponse({"status": "down", "database": "no answer, see the server's log"}, status=503)
    return JsonResponse({"status": "ok"})


@require_safe
def prometheus_metrics_view(request: HttpRequest) -> HttpResponse:
    """Prometheus text. Needs a token with the scope read, unless the server is bound to loopback."""
    if not is_loopback() and not has_read_token(request):
        message = "Send `Authorization: Bearer <token>` with the scope read.\n"
        return HttpResponse(message, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})
    text = "".join(format_gauge(*gauge) for gauge in collect_gauges())
    return HttpResponse(text, content_type="text/plain; version=0.0.4; charset=utf-8")


def is_loopback() -> bool:
    return urlsplit(settings.PUBLIC_URL).hostname in ("127.0.0.1", "localhost", "::1")


def has_read_token(request: HttpRequest) -> bool:
    try:
        return permissions.authenticate_token(request.headers.get("Authorization", "")).allows("read")
    except AuthenticationFailed:
        return False


def collect_gauges() -> list[Gauge]:
    counts = dict(Dump.objects.values_list("state").annotate(Count("pk")).order_by("state"))
    waiting = Dump.objects.filter(state__in=(Dump.State.RECEIVED, Dump.State.INDEXING))
    oldest = waiting.aggregate(oldest=Min("received_at"))["oldest"]
    age = (timezone.now() - oldest).total_seconds() if oldest else 0.0
    states = [(f'{{state="{state}"}}', counts.get(state, 0)) for state in Dump.State.values]
    return [
        ("dumps", "Dumps by state.", states),
        ("oldest_unindexed_seconds", "Age of the oldest dump that is not indexed yet.", [("", age)]),
        ("runs", "Runs, also those in the trash.", [("", Run.objects.count())]),
        ("steps", "Steps, also superseded ones.", [("", Step.objects.count())]),
        ("samples", "Samples, also those of older versions.", [("", Sample.objects.count())]),
        ("flags", "Flags that are not withdrawn.", [("", Flag.objects.filter(withdrawn_at=None).count())]),
        ("free_bytes", "Free space on the data volume.", [("", count_free_bytes())]),
    ]


def format_gauge(name: str, description: str, values: Iterable[tuple[str, float]]) -> str:
    lines = [f"# HELP rolloutdeck_{name} {description}", f"# TYPE rolloutdeck_{name} gauge"]
    return "\n".join([*lines, *(f"rolloutdeck_{name}{labels} {value}" for labels, value in values)]) + "\n"
