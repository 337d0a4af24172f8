"""Saved views: the menu, the URL that opens one, and the forms that change them."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from dashboard import permissions
from dashboard.pages.common import get_return_url, get_signed_in_user, is_script_request, redirect_see_other
from dashboard.pages.saved_views.links import PAGES_WITHOUT_RUN, build_view_url, find_views
from rollouts.errors import RolloutError
from rollouts.lib import MAX_INT64
from rollouts.models import Run, SavedView
from rollouts.saved_views import delete_view, may_change_view, save_view, update_view

SHARE_ROLE = "annotator"


@login_required
@require_safe
def views_menu_view(request: HttpRequest) -> HttpResponse:
    """`?page=&run=`: the views of a page, and the form that saves its current state."""
    page = request.GET.get("page", "")
    if page not in SavedView.Page.values:
        raise Http404(_("Page not found."))
    user, run = get_signed_in_user(request), find_run(request)
    views = find_views(user, page, run.project if run else None)
    projects = [run.project] if run else list(permissions.visible_projects(request).order_by("slug"))
    context = {
        "views": [(view, build_view_url(view, run), may_change_view(view, user)) for view in views],
        "page": page,
        "run": run,
        "projects": projects,
    }
    return render(request, "saved_views/list.html", context)


def find_run(request: HttpRequest) -> Run | None:
    uid = request.GET.get("run", "") or request.POST.get("run", "")
    return permissions.run_or_404(request, uid) if uid else None


@login_required
@require_safe
def open_view(request: HttpRequest, pk: int) -> HttpResponse:
    """Redirects to the page: of `?run=`, else of the most recently updated run of the project."""
    view = get_view_or_404(request, pk)
    run = find_run(request)
    if run is None and view.page not in PAGES_WITHOUT_RUN:
        runs = permissions.visible_runs(request).filter(project=view.project, archived_at=None)
        run = runs.order_by("-seen_at", "-pk").first()
        if run is None:
            raise Http404(_("The project of this view has no runs."))
    return redirect(build_view_url(view, run))


@login_required
@require_POST
def save_view_view(request: HttpRequest) -> HttpResponse:
    """`name`, `page`, `params`, `project` and `shared`; a view of the user with this name is replaced."""
    user, slug, data = get_signed_in_user(request), request.POST.get("project", ""), request.POST
    try:
        project = permissions.project_or_404(request, slug) if slug else None
        shared = "shared" in data
        if shared and project:
            permissions.require_role(request, project, SHARE_ROLE)
        view = save_view(
            user,
            page=data.get("page"),
            name=data.get("name"),
            params=data.get("params"),
            project=project,
            shared=shared,
        )
    except (RolloutError, PermissionDenied) as error:
        return respond(request, error=error)
    return respond(request, _("View {name} saved.").format(name=view.name))


@login_required
@require_POST
def change_view_view(request: HttpRequest, pk: int) -> HttpResponse:
    """`do`: rename (`name`), replace (`params`), share, unshare, delete."""
    user, view, data = get_signed_in_user(request), get_view_or_404(request, pk), request.POST
    if not may_change_view(view, user):
        raise PermissionDenied(_("Only the owner of the view or of the project can change it."))
    try:
        message = change_view(request, view, data.get("do", ""))
    except (RolloutError, PermissionDenied) as error:
        return respond(request, error=error)
    return respond(request, message.format(name=view.name))


def respond(request: HttpRequest, message: str = "", error: Exception | None = None) -> HttpResponse:
    """For the script of the menu, which shows an error next to what the person has entered, and else loads the page
    again: that shows the message."""
    if error and is_script_request(request):
        return JsonResponse({"message": str(error)}, status=400)
    if error:
        messages.error(request, str(error))
    else:
        messages.success(request, message)
    return JsonResponse({}) if is_script_request(request) else redirect_see_other(get_return_url(request, "runs"))


def change_view(request: HttpRequest, view: SavedView, action: str) -> str:
    user, data = get_signed_in_user(request), request.POST
    if action == "delete":
        delete_view(view, user)
        return _("View {name} deleted.")
    fields: dict[str, dict[str, Any]] = {
        "rename": {"name": data.get("name")},
        "replace": {"params": data.get("params")},
        "share": {"shared": True},
        "unshare": {"shared": False},
    }
    if action not in fields:
        raise Http404(_("Page not found."))
    if action == "share" and view.project:
        permissions.require_role(request, view.project, SHARE_ROLE)
    update_view(view, user, **fields[action])
    return _("View {name} saved.")


def get_view_or_404(request: HttpRequest, pk: int) -> SavedView:
    views = SavedView.objects.visible_to(get_signed_in_user(request)).select_related("project", "owner")
    view: SavedView | None = views.filter(pk=min(pk, MAX_INT64)).first()
    if view is None:
        raise Http404(_("View not found, or it is private."))
    return view
