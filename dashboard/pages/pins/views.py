"""The page of pins and replay plans, and the forms that save a plan and override a check."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages.common import (
    get_requested_panel,
    get_return_url,
    get_signed_in_user,
    redirect_see_other,
    render_page_or_panel,
    role_allows,
)
from dashboard.pages.pins import pin_list
from dashboard.pages.pins.plan_view import PlanPageState, build_plan_context
from rolloutdeck.trainer_api import TRAINERS
from rollouts.errors import OutdatedError, RolloutError
from rollouts.models import Artifact, Pin, Project, Run
from rollouts.replay import DEFAULT_PLAN_NAME, override_check, restore_check, save_plan

PANELS = {"pins": "pins/table.html", "plan": "pins/plan.html"}
MAX_PINNABLE_RUNS = 8


@login_required
@require_safe
def pins_page(request: HttpRequest) -> HttpResponseBase:
    """`project` and `plan` select the plan, `run` and `steps` its preview; all else is a draft, see `PlanDraft`."""
    project = choose_project(request)
    if project and {"add", "remove"} & request.GET.keys() and not get_requested_panel(request):
        return redirect(PlanPageState(request.GET, project).build_link())
    return render_page_or_panel(
        request,
        "pins/page.html",
        PANELS,
        lambda panel: build_pins_context(request, project, panel) if project else {"project": None},
    )


def choose_project(request: HttpRequest) -> Project | None:
    """The project that the URL names, else the one with the newest pin, else with the newest run."""
    if slug := request.GET.get("project", ""):
        return permissions.project_or_404(request, slug)
    runs = permissions.visible_runs(request).select_related("project")
    pin = Pin.objects.filter(run__in=runs, removed_at=None).select_related("project").order_by("-created_at").first()
    newest = pin or runs.order_by("-seen_at").first()
    return newest.project if newest else permissions.visible_projects(request).order_by("slug").first()


def visible_projects_with_pins(request: HttpRequest) -> QuerySet[Project]:
    current = Q(pins__removed_at=None, pins__run__deleted_at=None)
    projects: QuerySet[Project] = permissions.visible_projects(request).annotate(pinned=Count("pins", filter=current))
    return projects.order_by("slug")


def build_pins_context(request: HttpRequest, project: Project, panel: str) -> dict[str, Any]:
    page = PlanPageState(request.GET, project)
    role = project.role_of(request.user)
    targets: dict[int, list[int]] = {}
    for pin, step in page.saved.pin_targets:
        targets.setdefault(pin, []).append(step)
    rows = pin_list.load_pin_rows(project, targets)
    newest = project.runs.filter(deleted_at=None).order_by("-seen_at").first()
    context = {
        "project": project,
        "projects": list(visible_projects_with_pins(request)),
        "plan_name": page.plan,
        "plan_names": list_plan_names(project, page.plan),
        "role": role,
        "may_pin": role_allows(role, "maintainer"),
        "pin_rows": rows,
        "newest_run": newest,
        "pinnable_runs": [] if rows else find_pinnable_runs(project),
        "trainer": newest.framework if newest and newest.framework in TRAINERS else TRAINERS[0],
        "back": page.build_link(),
        "draft_link": f"{page.build_link(page.saved)}&{page.draft.to_query()}",
    }
    return context if panel == "pins" else context | build_plan_context(page, rows, panel)


def find_pinnable_runs(project: Project) -> list[Run]:
    """The newest runs that have files of a step that can be loaded again."""
    lost = (Artifact.State.UNSAFE, Artifact.State.GONE)
    has_files = Exists(Artifact.objects.filter(run=OuterRef("pk")).exclude(state__in=lost))
    return list(project.runs.filter(has_files, deleted_at=None).order_by("-seen_at")[:MAX_PINNABLE_RUNS])


def list_plan_names(project: Project, current: str) -> list[str]:
    names = {*project.plans.values_list("name", flat=True), DEFAULT_PLAN_NAME, current}
    return sorted(names, key=lambda name: (name != DEFAULT_PLAN_NAME, name))


@login_required
@require_POST
def save_plan_view(request: HttpRequest) -> HttpResponse:
    """With `do=save` the draft becomes the next revision. Any other button redirects to the draft's URL, so the form
    works without script. If another user has saved a revision since, the draft's page shows the conflict."""
    project = permissions.project_or_404(request, request.POST.get("project", ""), role="maintainer")
    page = PlanPageState(request.POST, project)
    draft = page.draft
    if request.POST.get("do") != "save" or not draft.is_valid:
        return redirect_see_other(page.build_link())
    pins = Pin.objects.filter(project=project).in_bulk([pin for pin, _ in draft.pin_targets])
    try:
        revision = save_plan(
            project,
            page.plan,
            get_signed_in_user(request),
            if_match=draft.base,
            action=draft.action,
            on_mismatch=draft.on_mismatch,
            exclude_flagged=draft.exclude_flagged,
            entries=[(pins[pin], step) for pin, step in draft.pin_targets if pin in pins],
        )
    except RolloutError as error:
        if not isinstance(error, OutdatedError):
            messages.error(request, str(error))
        return redirect_see_other(page.build_link())
    message = _("Saved revision {number}. Runs that have already started keep their revision.")
    messages.success(request, message.format(number=revision.number))
    page = PlanPageState(request.POST, project)
    return redirect_see_other(page.build_link(page.saved))


@login_required
@require_POST
def override_check_view(request: HttpRequest, slug: str) -> HttpResponse:
    """With the field `note`, the check of `fact` only warns, for that reason; without it, the check is enforced."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    fact, user = request.POST.get("fact", ""), get_signed_in_user(request)
    try:
        if "note" in request.POST:
            override_check(project, fact, user, request.POST["note"])
        else:
            restore_check(project, fact, user)
    except RolloutError as error:
        messages.error(request, str(error))
    return redirect_see_other(get_return_url(request, "pins"))
