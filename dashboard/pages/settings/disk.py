"""Disk usage of the projects that one maintains, and of the runs of one project, as the sweep measured them."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from rollouts.models import Project, RetentionPolicy, Run
from rollouts.retention import list_quota_statuses, load_project_drops
from rollouts.runs import list_run_usage, sum_project_usage
from rollouts.storage import count_free_bytes

RUNS_PER_PAGE = 50


@login_required
@require_safe
def disk_page(request: HttpRequest) -> HttpResponse:
    """`?project=` shows the runs of one project."""
    roles = permissions.visible_projects(request).load_with_roles(request.user)
    projects = [project for project, role in roles.items() if permissions.role_allows(role, "maintainer")]
    if not projects:
        raise Http404(_("Disk usage is shown to maintainers of a project."))
    usage = sum_project_usage(projects)
    quotas = {status.project.pk: status for status in list_quota_statuses(projects)}
    policies = {policy.project_id: policy for policy in RetentionPolicy.objects.filter(project__in=projects)}
    rows = [
        build_project_row(project, usage.get(project.pk, {}))
        | {"quota": quotas.get(project.pk), "policy": policies.get(project.pk)}
        for project in projects
    ]
    rows.sort(key=lambda row: -row["total"])
    context: dict[str, Any] = {
        "tab": "settings", "kinds": common.list_disk_kinds(), "rows": rows,
        "free": count_free_bytes(), "total": sum(row["total"] for row in rows),
    }  # fmt: skip
    if slug := common.clean_param(request.GET.get("project", "")):
        project = next((each for each in projects if each.slug == slug), None)
        if project is None:
            raise Http404(_("There is no such project, or you do not maintain it."))
        context |= build_runs_context(request, project)
    return render(request, "settings/disk.html", context)


def build_project_row(project: Project, sizes: dict[str, int]) -> dict[str, Any]:
    values = [(name, sizes.get(kind, 0)) for kind, name in common.list_disk_kinds()]
    total = sum(size for _name, size in values)
    return {"project": project, "sizes": values, "total": total, "runs": sizes.get("runs", 0)}


def build_runs_context(request: HttpRequest, project: Project) -> dict[str, Any]:
    page = Paginator(list_run_usage(project), RUNS_PER_PAGE).get_page(request.GET.get("page"))
    drops = load_project_drops(project)
    kinds = common.list_disk_kinds()
    runs = [(run, [(name, getattr(run.disk_usage, kind)) for kind, name in kinds], drops.get(run.pk)) for run in page]
    waiting = Run.objects.filter(project=project, disk_usage=None).count()
    return {"project": project, "page": page, "runs": runs, "unmeasured": waiting}
