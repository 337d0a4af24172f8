"""The pins of a project, and the plan that says where the next run replays them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages.common import get_requested_panel, render_page_or_panel, role_allows
from dashboard.pages.pins import pin_list
from dashboard.pages.pins.plan_view import PlanPageState, build_plan_context
from rolloutdeck.trainer_api import TRAINERS
from rollouts.models import Artifact, Pin, Project, Run
from rollouts.replay import DEFAULT_PLAN_NAME

PANELS = {"pins": "pins/table.html", "plan": "pins/plan.html"}
MAX_PINNABLE_RUNS = 8


@login_required
@require_safe
def pins_page(request: HttpRequest) -> HttpResponseBase:
    """`?project=&plan=` choose, `run=` and `steps=` hold the plan against a run; the rest is a draft, see `Draft`."""
    project = choose_project(request)
    if project is None:
        return render_page_or_panel(request, "pins/page.html", PANELS, lambda panel: {"project": None})
    if ("add" in request.GET or "remove" in request.GET) and not get_requested_panel(request):
        return redirect(PlanPageState(request.GET, project).address())
    return render_page_or_panel(
        request, "pins/page.html", PANELS, lambda panel: build_pins_context(request, project, panel)
    )


def choose_project(request: HttpRequest) -> Project | None:
    """The project that the address names, else the one with the newest pin, else with the newest run."""
    if slug := request.GET.get("project", ""):
        return permissions.project_or_404(request, slug)
    runs = permissions.visible_runs(request).select_related("project")
    pin = Pin.objects.filter(run__in=runs, removed_at=None).select_related("project").order_by("-created_at").first()
    found = pin or runs.order_by("-seen_at").first()
    return found.project if found else permissions.visible_projects(request).order_by("slug").first()


def visible_projects_with_pins(request: HttpRequest) -> QuerySet[Project]:
    standing = Q(pins__removed_at=None, pins__run__deleted_at=None)
    found: QuerySet[Project] = permissions.visible_projects(request).annotate(pinned=Count("pins", filter=standing))
    return found.order_by("slug")


def build_pins_context(request: HttpRequest, project: Project, panel: str) -> dict[str, Any]:
    page = PlanPageState(request.GET, project)
    role = project.role_of(request.user)
    targets: dict[int, list[int]] = {}
    for pin, step in page.saved.entries:
        targets.setdefault(pin, []).append(step)
    rows = pin_list.load_pin_rows(project, targets)
    newest = project.runs.filter(deleted_at=None).order_by("-seen_at").first()
    able = TRAINERS
    shown = {
        "project": project,
        "projects": list(visible_projects_with_pins(request)),
        "plan_name": page.plan,
        "plan_names": plan_names(project, page.plan),
        "role": role,
        "may_pin": role_allows(role, "maintainer"),
        "rows_of_pins": rows,
        "newest_run": newest,
        "pinnable_runs": [] if rows else find_pinnable_runs(project),
        "trainer": newest.framework if newest and newest.framework in able else able[0],
        "back": page.address(),
        "draft_link": f"{page.address(page.saved)}&{page.draft.query()}",
    }
    return shown if panel == "pins" else shown | build_plan_context(page, rows, panel)


def find_pinnable_runs(project: Project) -> list[Run]:
    """The newest runs that have files of a step that can be loaded again."""
    spoilt = (Artifact.State.UNSAFE, Artifact.State.GONE)
    there = Exists(Artifact.objects.filter(run=OuterRef("pk")).exclude(state__in=spoilt))
    return list(project.runs.filter(there, deleted_at=None).order_by("-seen_at")[:MAX_PINNABLE_RUNS])


def plan_names(project: Project, shown: str) -> list[str]:
    named = set(project.plans.values_list("name", flat=True)) | {DEFAULT_PLAN_NAME, shown}
    return sorted(named, key=lambda name: (name != DEFAULT_PLAN_NAME, name))
