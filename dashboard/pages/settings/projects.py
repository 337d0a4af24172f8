"""Settings: the projects a person has a role in, and one project's reasons, people and tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import permissions
from dashboard.pages.common import (
    clean_param,
    get_signed_in_user,
    render_page_or_panel,
    render_query_error,
    role_allows,
)
from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.indexing import change_correctness_rule, load_evaluation_progress
from rollouts.models import Membership, Project
from rollouts.projects import create_project
from rollouts.query import DEFAULT_RULE_TEXT
from workers import dispatch

MAX_REASONS = 30
MAX_REASON_KEY_CHARS = 40
PANELS = {"judging": "settings/correctness.html"}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def settings_page(request: HttpRequest) -> HttpResponse:
    """All projects; a post makes a new one."""
    if request.method == "POST":
        return create_requested_project(request)
    mine = permissions.visible_projects(request).order_by("slug")
    shown = [(project, project.role_of(request.user)) for project in mine]
    return render(
        request,
        "settings/page.html",
        {"projects": shown, "password": SetPasswordForm(get_signed_in_user(request)), "tab": "settings"},
    )


def create_requested_project(request: HttpRequest) -> HttpResponse:
    try:
        project, new = create_project(request.POST.get("slug", "").strip(), get_signed_in_user(request))
    except RolloutError as error:
        messages.error(request, str(error))
        return redirect("settings")
    if not new and not project.role_of(request.user):
        said = _("Project {project} already exists. Ask one of its owners for a role.")
        messages.error(request, said.format(project=project.slug))
        return redirect("settings")
    return redirect("project", project.slug)


@login_required
@require_http_methods(["GET", "HEAD"])
def project_page(request: HttpRequest, slug: str) -> HttpResponseBase:
    one = permissions.project_or_404(request, slug)
    return render_page_or_panel(
        request, "settings/project.html", PANELS, lambda panel: build_project_context(request, one)
    )


def build_project_context(request: HttpRequest, one: Project, **more: Any) -> dict[str, Any]:
    role = one.role_of(request.user)
    members = list(one.memberships.select_related("user").order_by("user__username"))
    return {
        "project": one,
        "role": role,
        "tab": "settings",
        "members": members,
        "linkable": {
            member.user_id for member in members if can_create_sign_in_link(get_signed_in_user(request), member.user)
        },
        "roles": Membership.Role.values,
        "tokens": list(one.tokens.filter(revoked_at=None).select_related("user").order_by("name", "pk")),
        "scopes": TOKEN_SCOPES,
        "owner": role_allows(role, "owner"),
        "maintainer": role_allows(role, "maintainer"),
        "judged": load_evaluation_progress(one),
        "default_rule": DEFAULT_RULE_TEXT,
        "rule_draft": None,
        "reason_lines": "\n".join(reason["name"] for reason in one.reasons),
        **more,
    }


def can_create_sign_in_link(by: User, user: User) -> bool:
    """Whether `by` may make a link that signs `user` in: an admin of the server for anybody, an owner while the account
    opens nothing but what the owner has; who signed in once may have made projects."""
    if by.is_superuser or user.is_superuser or user.last_login:
        return by.is_superuser
    owned = Membership.objects.filter(user=by, role=Membership.Role.OWNER).values("project")
    return not user.memberships.exclude(project__in=owned).exists()


@login_required
@require_POST
def save_reasons_view(request: HttpRequest, slug: str) -> HttpResponse:
    """One reason on each line, in the order of the keys 1 to 6. A name that stays keeps its key."""
    one = permissions.project_or_404(request, slug)
    permissions.require_role(request, one, "maintainer")
    typed = clean_param(request.POST.get("reasons", ""))
    names = list(dict.fromkeys(" ".join(line.split())[:60] for line in typed.splitlines()))
    names = [name for name in names if name][:MAX_REASONS]
    if not names:
        messages.error(request, _("Nothing was saved: a project needs at least one flag reason."))
        return redirect("project", one.slug)
    one.reasons = assign_reason_keys(names, {reason["name"]: reason["key"] for reason in one.reasons})
    one.save(update_fields=["reasons"])
    messages.success(request, _("Flag reasons saved."))
    return redirect("project", one.slug)


def assign_reason_keys(names: Sequence[str], known: Mapping[str, str]) -> list[dict[str, str]]:
    """The names with their keys; new ones get one that no other has, since a key is what flags hold."""
    keys = {name: known[name] for name in names if name in known}
    for name in names:
        if name not in keys:
            keys[name] = find_free_key(
                slugify(name, allow_unicode=True)[:MAX_REASON_KEY_CHARS] or name[:MAX_REASON_KEY_CHARS], keys.values()
            )
    return [{"key": keys[name], "name": name} for name in names]


def find_free_key(key: str, taken: Collection[str]) -> str:
    """The key, with a number behind it where it is taken."""
    endings = chain([""], (f"-{number}" for number in count(2)))
    return next(one for end in endings if (one := key[: MAX_REASON_KEY_CHARS - len(end)] + end) not in taken)


@login_required
@require_POST
def save_correctness_rule_view(request: HttpRequest, slug: str) -> HttpResponse:
    """The rule for Correct. One that cannot be read is shown again with what is wrong, and nothing is changed."""
    one = permissions.project_or_404(request, slug)
    permissions.require_role(request, one, "maintainer")
    told = request.POST.get("correct", "")
    try:
        change_correctness_rule(one, told, get_signed_in_user(request))
    except InvalidInputError as problem:
        shown = build_project_context(request, one, rule_draft=told, rule_error=render_query_error(told, problem))
        return render(request, "settings/project.html", shown, status=400)
    dispatch.send_now("evaluate_correctness", one.pk)
    messages.success(request, _("Rule saved. Re-evaluating samples in the background."))
    return redirect("project", one.slug)
