"""Health and statistics of the server: `/healthz` for load balancers, `/metrics` for Prometheus."""

import logging
from collections.abc import Iterable
from threading import Lock
from time import monotonic
from urllib.parse import urlsplit

from django.conf import settings
from django.db import Error, connection
from django.db.models import Count, F, Min, Sum
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis import RedisError
from rest_framework.exceptions import AuthenticationFailed, Throttled

from dashboard import permissions
from rollouts.models import Dump, Label, Project, Run, RunDiskUsage, Sample, Step
from rollouts.retention import list_quota_statuses
from rollouts.runs import sum_project_usage
from rollouts.storage import RESERVED_BYTES, count_free_bytes, create_incoming_path
from workers import liveness

log = logging.getLogger(__name__)

MAX_MEASURED_RUNS = 50
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
def readyz(request: HttpRequest) -> JsonResponse:
    """200 while the server can accept and index data, else 503. The JSON names each part that fails."""
    checks = {"database": check_database, "storage": check_storage, "redis": check_redis, "worker": check_worker}
    results = {name: check() for name, check in checks.items()}
    is_ready = all(result == "ok" for result in results.values())
    return JsonResponse({"status": "ok" if is_ready else "not ready", **results}, status=200 if is_ready else 503)


def check_database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        log.exception("The database does not answer.")
        return "no answer, see the server's log"
    return "ok"


class StorageProbe:
    """Asked by anybody, so the disk is written at most once in `SECONDS`."""

    SECONDS = 5.0

    def __init__(self) -> None:
        self.lock, self.checked_at, self.result = Lock(), -self.SECONDS, ""

    def check(self) -> str:
        with self.lock:
            if monotonic() - self.checked_at >= self.SECONDS:
                self.result, self.checked_at = write_probe_file(), monotonic()
            return self.result


storage_probe = StorageProbe()


def check_storage() -> str:
    return storage_probe.check()


def write_probe_file() -> str:
    """Writes a file of one block, since a full disk may still have room for an empty one."""
    try:
        path = create_incoming_path()
        try:
            path.write_bytes(bytes(4096))
        finally:
            path.unlink(missing_ok=True)
        free = count_free_bytes()
    except OSError:
        return "not writable"
    return "ok" if free >= RESERVED_BYTES else "full: uploads are refused"


def check_redis() -> str:
    try:
        liveness.connect_redis().ping()
    except RedisError:
        return "no answer"
    return "ok"


def check_worker() -> str:
    try:
        return "ok" if liveness.has_live_worker() else "none reported within 30 s"
    except RedisError:
        return "unknown: Redis does not answer"


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
    except (AuthenticationFailed, Throttled):
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
        ("flags", "Flags that are not withdrawn.", [("", Label.objects.flags().active().count())]),
        (
            "disk_bytes",
            "Bytes of the runs of a project by kind, as measured last.",
            [
                (f'{{project="{project}",kind="{kind}"}}', size)
                for project, sizes in list_project_sizes()
                for kind, size in sizes.items()
            ],
        ),
        ("run_disk_bytes", "Bytes of the largest runs by kind, by the id of the run.", list_run_sizes()),
        *collect_retention_gauges(),
        ("free_bytes", "Free space on the data volume.", [("", count_free_bytes())]),
    ]


def list_run_sizes() -> list[tuple[str, float]]:
    """Only of some runs, since each is a time series of its own."""
    total = sum((F(kind) for kind in RunDiskUsage.KINDS[1:]), F(RunDiskUsage.KINDS[0]))
    largest = RunDiskUsage.objects.select_related("run__project").order_by(total.desc(), "pk")[:MAX_MEASURED_RUNS]
    return [
        (f'{{project="{usage.run.project.slug}",run="{usage.run.uid}",kind="{kind}"}}', getattr(usage, kind))
        for usage in largest
        for kind in RunDiskUsage.KINDS
    ]


def collect_retention_gauges() -> list[Gauge]:
    quotas = list_quota_statuses(Project.objects.filter(quota__isnull=False).order_by("slug"))
    dropped = Step.objects.filter(dropped__gt=0).order_by("run__project__slug")
    samples = dropped.values_list("run__project__slug").annotate(Sum("dropped"))
    return [
        ("quota_bytes", "Bytes that a project may use.", [(label(row.project.slug), row.quota) for row in quotas]),
        ("quota_used_bytes", "Bytes that count for a quota.", [(label(row.project.slug), row.used) for row in quotas]),
        ("dropped_samples", "Samples that retention dropped.", [(label(slug), count) for slug, count in samples]),
    ]


def label(slug: str) -> str:
    return f'{{project="{slug}"}}'


def list_project_sizes() -> list[tuple[str, dict[str, int]]]:
    projects = {project.pk: project for project in Project.objects.order_by("slug")}
    usage = sum_project_usage(projects.values())
    return [
        (projects[pk].slug, {kind: usage[pk][kind] for kind in RunDiskUsage.KINDS}) for pk in projects if pk in usage
    ]


def format_gauge(name: str, description: str, values: Iterable[tuple[str, float]]) -> str:
    lines = [f"# HELP rolloutdeck_{name} {description}", f"# TYPE rolloutdeck_{name} gauge"]
    return "\n".join([*lines, *(f"rolloutdeck_{name}{labels} {value}" for labels, value in values)]) + "\n"
