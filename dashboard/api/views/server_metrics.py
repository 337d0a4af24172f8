"""`/metrics` for Prometheus: gauges from the database, and the counters and times of `rollouts/telemetry`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.db import connection
from django.db.models import Count, F, Min, Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis import RedisError
from rest_framework.exceptions import AuthenticationFailed, Throttled

from dashboard import permissions
from dashboard.sign_in import authenticate_token
from rollouts.models import Dump, Label, Project, ProjectQuerySet, Run, RunDiskUsage, Sample, Step
from rollouts.retention import list_quota_statuses
from rollouts.runs import sum_project_usage
from rollouts.storage import count_free_bytes
from rollouts.telemetry import build_registry
from workers import liveness

MAX_MEASURED_RUNS = 50
MIN_ESTIMATED_ROWS = 1_000_000  # PostgreSQL counts them in a tenth of a second
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@require_safe
def server_metrics_view(request: HttpRequest) -> HttpResponse:
    """Prometheus text. Needs a token with the scope read, unless the server is bound to loopback."""
    projects: ProjectQuerySet | None = (
        Project.objects.all() if permissions.is_local_server() else find_readable_projects(request)
    )
    if projects is None:
        message = "Send `Authorization: Bearer <token>` with the scope read.\n"
        return HttpResponse(message, status=401, content_type="text/plain", headers={"WWW-Authenticate": "Bearer"})
    registry = CollectorRegistry()
    registry.register(DatabaseGauges(projects))
    return HttpResponse(generate_latest(registry) + generate_latest(build_registry()), content_type=CONTENT_TYPE)


def find_readable_projects(request: HttpRequest) -> ProjectQuerySet | None:
    """The projects that the token may read; all for a server admin, who watches the server with it. None without a
    token that may read."""
    try:
        token = authenticate_token(request.headers.get("Authorization", ""))
    except (AuthenticationFailed, Throttled):
        return None
    if not token.allows("read") or (token.project and not token.project.role_of(token.user)):
        return None
    projects: ProjectQuerySet = Project.objects.all()
    return projects if token.user.is_superuser else permissions.visible_projects(token)


class DatabaseGauges(Collector):
    """What the tables say now, with the names of these projects and of their runs only. The same for each web process
    that is asked."""

    def __init__(self, projects: ProjectQuerySet) -> None:
        self.projects = projects

    def describe(self) -> Iterable[Metric]:
        return ()  # else the registry would collect once more

    def collect(self) -> Iterator[Metric]:
        yield from collect_row_gauges()
        yield from collect_disk_gauges(self.projects)
        yield from collect_retention_gauges(self.projects)
        yield gauge("free_bytes", "Free space on the data volume.", count_free_bytes())
        waiting = count_waiting_tasks()
        if waiting is not None:
            yield gauge("waiting_tasks", "Messages in Redis that no worker has taken.", waiting)


def gauge(name: str, description: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rolloutdeck_{name}", description, value=value)


def labelled_gauge(
    name: str, description: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(f"rolloutdeck_{name}", description, labels=labels)
    for own, value in values:
        family.add_metric(own, value)
    return family


def collect_row_gauges() -> Iterator[Metric]:
    counts = dict(Dump.objects.values_list("state").annotate(Count("pk")).order_by("state"))
    states = [((state,), counts.get(state, 0)) for state in Dump.State.values]
    yield labelled_gauge("dumps", "Dumps by state.", ("state",), states)
    waiting = Dump.objects.filter(state__in=(Dump.State.RECEIVED, Dump.State.INDEXING))
    oldest = waiting.aggregate(oldest=Min("received_at"))["oldest"]
    age = (timezone.now() - oldest).total_seconds() if oldest else 0.0
    yield gauge("oldest_unindexed_seconds", "Age of the oldest dump that is not indexed yet.", age)
    yield gauge("runs", "Runs, also those in the trash.", Run.objects.count())
    yield gauge("steps", "Steps, also superseded ones.", Step.objects.count())
    yield gauge("samples", "About how many samples there are, also those of older versions.", count_samples())
    yield gauge("flags", "Flags that are not withdrawn.", Label.objects.flags().active().count())


def count_samples() -> int:
    """Returns PostgreSQL's own estimate if there are many: it counts 100 million rows for longer than Prometheus
    waits."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", [Sample._meta.db_table])
            estimate = int(cursor.fetchone()[0])
        if estimate >= MIN_ESTIMATED_ROWS:
            return estimate
    return Sample.objects.count()


def collect_disk_gauges(projects: ProjectQuerySet) -> Iterator[Metric]:
    shown = list(projects.order_by("slug"))
    usage = sum_project_usage(shown)
    sizes = [
        ((project.slug, kind), float(usage[project.pk][kind]))
        for project in shown
        if project.pk in usage
        for kind in RunDiskUsage.KINDS
    ]
    description = "Bytes of the runs of a project by kind, as measured last."
    yield labelled_gauge("disk_bytes", description, ("project", "kind"), sizes)
    total = sum((F(kind) for kind in RunDiskUsage.KINDS[1:]), F(RunDiskUsage.KINDS[0]))
    measured = RunDiskUsage.objects.filter(run__project__in=shown).select_related("run__project")
    largest = measured.order_by(total.desc(), "pk")[:MAX_MEASURED_RUNS]
    run_sizes = [
        ((row.run.project.slug, row.run.uid, kind), float(getattr(row, kind)))
        for row in largest  # only some runs, since each is a time series of its own
        for kind in RunDiskUsage.KINDS
    ]
    description = "Bytes of the largest runs by kind, by the id of the run."
    yield labelled_gauge("run_disk_bytes", description, ("project", "run", "kind"), run_sizes)


def collect_retention_gauges(projects: ProjectQuerySet) -> Iterator[Metric]:
    quotas = list_quota_statuses(projects.filter(quota__isnull=False).order_by("slug"))
    limits = [((row.project.slug,), float(row.quota)) for row in quotas]
    yield labelled_gauge("quota_bytes", "Bytes that a project may use.", ("project",), limits)
    used = [((row.project.slug,), float(row.used)) for row in quotas]
    yield labelled_gauge("quota_used_bytes", "Bytes that count for a quota.", ("project",), used)
    dropped = Step.objects.filter(dropped__gt=0, run__project__in=projects).order_by("run__project__slug")
    samples = [((slug,), count) for slug, count in dropped.values_list("run__project__slug").annotate(Sum("dropped"))]
    yield labelled_gauge("dropped_samples", "Samples that retention dropped.", ("project",), samples)


def count_waiting_tasks() -> int | None:
    """Returns the length of Celery's list in Redis, None if Redis does not answer."""
    try:
        return int(liveness.connect_redis().llen("celery"))
    except RedisError:
        return None
