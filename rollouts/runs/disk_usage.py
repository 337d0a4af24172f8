"""The disk use of runs and projects, from the sizes that the sweep stored. Reads no files."""

from collections.abc import Iterable

from django.db.models import Count, QuerySet, Sum

from rollouts.models import Project, Run, RunDiskUsage

KINDS = RunDiskUsage.KINDS


def sum_project_usage(projects: Iterable[Project]) -> dict[int, dict[str, int]]:
    """Returns {project id: {kind: bytes, "runs": measured runs}}, also of runs in the trash. One query."""
    rows = RunDiskUsage.objects.filter(run__project__in=[project.pk for project in projects]).order_by()
    sums = rows.values_list("run__project").annotate(Count("pk"), *(Sum(kind) for kind in KINDS))
    return {
        project: {**dict(zip(KINDS, map(int, sizes), strict=True)), "runs": count} for project, count, *sizes in sums
    }


def list_run_usage(project: Project) -> QuerySet[Run]:
    """Returns the runs of a project with their `disk_usage` and its `total`, the largest first."""
    total = sum((Sum(f"disk_usage__{kind}") for kind in KINDS[1:]), Sum(f"disk_usage__{KINDS[0]}"))
    runs = Run.objects.filter(project=project, disk_usage__isnull=False).select_related("disk_usage")
    return runs.annotate(total_bytes=total).order_by("-total_bytes", "pk")
