"""The page of pins and replay plans, and the forms that save a plan and override a check."""

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.pins import pin_list
from dashboard.pages.pins.plan_draft import PlanDraft
from dashboard.pages.pins.plan_view import PlanPageState, build_plan_context
from dashboard.pages.pins.range_form import build_range_context, find_pinnable_runs
from rolloutdeck.trainer_api import TRAINERS
from rollouts.errors import InvalidInputError, OutdatedError, RolloutError
from rollouts.models import Pin, Project
from rollouts.replay import DEFAULT_PLAN_NAME, move_entries, override_check, restore_check, save_plan

PANELS = {"pins": "pins/table.html", "plan": "pins/plan.html"}


@login_required
@require_safe
def pins_page(request: HttpRequest) -> HttpResponseBase:
    """`project` and `plan` select the plan, `run` and `steps` its preview, `range` and `from` the form of a range; all
    else is a draft, see `PlanDraft`."""
    project = choose_project(request)
    if project and {"add", "remove"} & request.GET.keys() and not common.get_requested_panel(request):
        return redirect(PlanPageState(request.GET, project).build_link())
    return common.render_page_or_panel(
        request,
        "pins/page.html",
        PANELS,
        lambda panel: build_pins_context(request, project, panel) if project else {"project": None},
    )


def choose_project(request: HttpRequest) -> Project | None:
    """The project that the URL names, else the last used one; in a new browser the one with the newest pin."""
    slug = request.GET.get("project", "")
    if slug or common.LAST_PROJECT_COOKIE in request.COOKIES:
        return common.choose_project(request, slug)
    pins = Pin.objects.filter(run__in=permissions.visible_runs(request), removed_at=None)
    newest = pins.select_related("project").order_by("-created_at").first()
    return newest.project if newest else common.choose_project(request, "")


def visible_projects_with_pins(request: HttpRequest) -> QuerySet[Project]:
    current = Q(pins__removed_at=None, pins__run__deleted_at=None)
    projects: QuerySet[Project] = permissions.visible_projects(request).annotate(pinned=Count("pins", filter=current))
    return projects.order_by("slug")


def build_pins_context(request: HttpRequest, project: Project, panel: str) -> dict[str, Any]:
    page = PlanPageState(request.GET, project, common.get_signed_in_user(request))
    role = project.role_of(request.user)
    targets: dict[int, list[int]] = {}
    for pin, step in page.saved.pin_targets:
        targets.setdefault(pin, []).append(step)
    rows = pin_list.load_pin_rows(project, targets)
    newest = project.runs.filter(deleted_at=None).order_by("-seen_at").first()
    pinnable_runs = find_pinnable_runs(project)
    context = {
        "project": project,
        "projects": list(visible_projects_with_pins(request)),
        "plan_name": page.plan,
        "plan_names": list_plan_names(project, page.plan),
        "role": role,
        "may_pin": permissions.role_allows(role, "maintainer"),
        "pin_rows": rows,
        "newest_run": newest,
        "pinnable_runs": pinnable_runs,
        **build_range_context(request.GET, pinnable_runs),
        "trainer": newest.framework if newest and newest.framework in TRAINERS else TRAINERS[0],
        "back": page.build_link(),
        "draft_link": f"{page.build_link(page.saved)}&{page.draft.to_query()}",
    }
    return context if panel == "pins" else context | build_plan_context(page, rows, panel)


def list_plan_names(project: Project, current: str) -> list[str]:
    names = {*project.plans.values_list("name", flat=True), DEFAULT_PLAN_NAME, current}
    return sorted(names, key=lambda name: (name != DEFAULT_PLAN_NAME, name))


@login_required
@require_POST
def save_plan_view(request: HttpRequest) -> HttpResponse:
    """With `do=save` the draft becomes the next revision; with `do=move` the lines in `pick` move to a new plan, with
    `move` those at these positions. Any other button redirects to the draft's URL, so the form works without script. If
    another user has saved a revision since, the draft's page shows the conflict."""
    project = permissions.project_or_404(request, request.POST.get("project", ""), role="maintainer")
    page = PlanPageState(request.POST, project)
    action = "move" if "move" in request.POST else request.POST.get("do")
    if action not in ("save", "move") or not page.draft.is_valid:
        return common.redirect_see_other(page.build_link())
    user = common.get_signed_in_user(request)
    try:
        if action == "save" and request.POST.get("cut"):
            raise InvalidInputError(_("The page shows only a part of this plan. Use the API to edit it."), "entries")
        if action == "move":
            positions = request.POST.get("move") or ",".join(request.POST.getlist("pick"))
            message: str = move_lines(page, user, positions)
        else:
            message = save_draft(page, user)
    except RolloutError as error:
        if not isinstance(error, OutdatedError):
            messages.error(request, str(error))
        return common.redirect_see_other(page.build_link())
    messages.success(request, message)
    page = PlanPageState(request.POST, project)
    return common.redirect_see_other(page.build_link(page.saved))


def save_draft(page: PlanPageState, user: User) -> str:
    """Returns the message. Raises RolloutError."""
    entries = load_entries(page.project, page.draft)
    revision = save_plan(
        page.project, page.plan, user, if_match=page.draft.base, entries=entries, **page.draft.settings
    )
    message = _("Saved revision {number}. Runs that have already started keep their revision.")
    return message.format(number=revision.number)


def move_lines(page: PlanPageState, user: User, positions: str) -> SafeString:
    """Moves the lines at these positions to a new plan and returns the message. Raises RolloutError."""
    draft = page.draft
    remaining, moved = (
        load_entries(page.project, part) for part in (draft.remove_entries(positions), draft.select_entries(positions))
    )
    rest, new = move_entries(
        page.project, page.plan, user, if_match=draft.base, remaining=remaining, moved=moved, **draft.settings
    )
    link = f"{reverse('pins')}?{urlencode({'project': page.project.slug, 'plan': new.plan.name})}"
    count = len(moved)
    text = ngettext(
        "Moved {count} step to the new plan {plan}. Saved {rest}.",
        "Moved {count} steps to the new plan {plan}. Saved {rest}.",
        count,
    )
    return format_html(text, count=count, plan=format_html('<a href="{}">{}</a>', link, new.plan.name), rest=str(rest))


def load_entries(project: Project, draft: PlanDraft) -> list[tuple[Pin, int]]:
    """[(pin, target step)] of the entries whose pin is one of the project."""
    pins = Pin.objects.filter(project=project).in_bulk([pin for pin, _ in draft.pin_targets])
    return [(pins[pin], step) for pin, step in draft.pin_targets if pin in pins]


@login_required
@require_POST
def override_check_view(request: HttpRequest, slug: str) -> HttpResponse:
    """With the field `note`, the check of `fact` only warns, for that reason; without it, the check is enforced."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    fact, user = request.POST.get("fact", ""), common.get_signed_in_user(request)
    try:
        if "note" in request.POST:
            override_check(project, fact, user, request.POST["note"])
        else:
            restore_check(project, fact, user)
    except RolloutError as error:
        messages.error(request, str(error))
    return common.redirect_see_other(common.get_return_url(request, "pins"))
