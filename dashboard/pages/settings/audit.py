"""The audit log of a project, for its owners, and of the server, for its admins."""

from datetime import date
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from dashboard import permissions
from dashboard.pages import common
from rollouts.models import Project
from rollouts.projects import list_audit_entries, list_audit_users, list_audit_verbs

ENTRIES_PER_PAGE = 50


@login_required
@require_safe
def audit_page(request: HttpRequest) -> HttpResponse:
    """`?project=`, by default the last used project, or `?server=1`; `user action since until run page` filter."""
    if request.GET.get("server"):
        if not common.get_signed_in_user(request).is_superuser:
            raise Http404(_("The audit log of the server is shown to server admins."))
        return render(request, "settings/audit.html", build_audit_context(request, None))
    project = common.choose_project(request, common.clean_param(request.GET.get("project", "")), "owner")
    if project is None or not permissions.role_allows(project.role_of(request.user), "owner"):
        raise Http404(_("The audit log is shown to owners of the project."))
    return render(request, "settings/audit.html", build_audit_context(request, project))


def build_audit_context(request: HttpRequest, project: Project | None) -> dict[str, Any]:
    params = {
        name: common.clean_param(request.GET.get(name, "")) for name in ("user", "action", "since", "until", "run")
    }
    run = permissions.run_or_404(request, params["run"]) if params["run"] else None
    since, until = parse_day(params["since"]), parse_day(params["until"])
    rows = list_audit_entries(project, user=params["user"], verb=params["action"], since=since, until=until, run=run)
    page = Paginator(rows, ENTRIES_PER_PAGE).get_page(request.GET.get("page"))
    whose = {"project": project.slug} if project else {"server": "1"}
    kept = whose | {name: value for name, value in params.items() if value}
    return {
        "project": project, "tab": "settings", "params": params, "run": run, "page": page,
        "entries": [(entry, common.describe_audit_entry(entry)) for entry in page],
        "users": list_audit_users(project),
        "verbs": [(verb, _(common.VERB_NAMES.get(verb, verb))) for verb in list_audit_verbs(project)],
        "query": urlencode(kept), "is_filtered": len(kept) > 1, "whose": whose, "whose_query": urlencode(whose),
        "invalid_day": (params["since"] and not since) or (params["until"] and not until),
    }  # fmt: skip


def parse_day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        return None
