"""Settings: the user's projects; one project with its members, tokens, flag reasons and correctness rule."""

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
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import permissions
from dashboard.pages import common
from dashboard.pages.settings.sessions import build_sessions_context
from dashboard.pages.sign_in import build_external_context
from dashboard.sign_in import has_second_factor
from rolloutdeck.protocol import TOKEN_SCOPES
from rollouts.errors import ConflictError, InvalidInputError, RolloutError
from rollouts.indexing import change_correctness_rule, load_evaluation_progress
from rollouts.models import Membership, Project, SharedLink
from rollouts.projects import create_project, delete_project
from rollouts.query import DEFAULT_RULE_TEXT
from workers import dispatch

MAX_REASONS = 30
MAX_SHARED_LINKS = 200
MAX_REASON_KEY_CHARS = 40
PANELS = {"judging": "settings/correctness.html"}


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def settings_page(request: HttpRequest) -> HttpResponse:
    """The user's projects and account; a post creates a project."""
    if request.method == "POST":
        return create_requested_project(request)
    return render(request, "settings/page.html", build_settings_context(request))


def build_settings_context(request: HttpRequest, **more: Any) -> dict[str, Any]:
    """Who only reads or flags is not offered to create projects; who belongs to none is."""
    user = common.get_signed_in_user(request)
    roles = dict(Membership.objects.filter(user=user).values_list("project", "role"))
    default = Membership.Role.OWNER if user.is_superuser else ""
    visible = permissions.visible_projects(request).order_by("slug")
    projects = [(project, default or roles.get(project.pk, "")) for project in visible]
    return {
        "projects": projects,
        "owned": [project for project, role in projects if permissions.role_allows(role, "owner")],
        "may_measure": any(permissions.role_allows(role, "maintainer") for _project, role in projects),
        "creates": not projects or any(permissions.role_allows(role, "maintainer") for _project, role in projects),
        "roles": Membership.Role.values,
        "password": SetPasswordForm(user),
        "tab": "settings",
        "second_factor": has_second_factor(user),
        **build_sessions_context(request),
        **build_external_context(user),
        **more,
    }


def create_requested_project(request: HttpRequest) -> HttpResponse:
    """Creates the project. What cannot be a name stays in the form, with the reason."""
    slug = request.POST.get("slug", "").strip()
    try:
        project, new = create_project(slug, common.get_signed_in_user(request))
        if not new and not project.role_of(request.user):
            message = _("Project {project} already exists. Ask one of its owners for a role.")
            raise ConflictError(message.format(project=project.slug))
    except RolloutError as error:
        context = build_settings_context(request, new_slug=slug, slug_error=str(error), creates=True)
        return render(request, "settings/page.html", context, status=400)
    return redirect("project", project.slug)


@login_required
@require_safe
def project_page(request: HttpRequest, slug: str) -> HttpResponseBase:
    project = permissions.project_or_404(request, slug)
    return common.render_page_or_panel(
        request, "settings/project.html", PANELS, lambda panel: build_project_context(request, project)
    )


def build_project_context(request: HttpRequest, project: Project, **more: Any) -> dict[str, Any]:
    role, user = project.role_of(request.user), common.get_signed_in_user(request)
    members = list(project.memberships.select_related("user").order_by("user__username"))
    tokens = project.tokens.filter(revoked_at=None).select_related("user").order_by("name", "pk")
    maintains = permissions.role_allows(role, "maintainer")
    listed = list(tokens if maintains else tokens.filter(user=user))
    return {
        "project": project,
        "role": role,
        "tab": "settings",
        "members": members,
        "linkable": {member.user_id for member in members if can_create_sign_in_link(user, member.user)},
        "roles": Membership.Role.values,
        "tokens": listed,
        "expiring": [token.name for token in listed if token.expires_soon],
        "scopes": TOKEN_SCOPES,
        "token_draft": {"name": "", "scopes": ["ingest"], "days": ""},
        "owner": permissions.role_allows(role, "owner"),
        "maintainer": maintains,
        "shared_links": SharedLink.objects.filter(project=project)
        .select_related("user")
        .defer("content")
        .order_by("-pk")[:MAX_SHARED_LINKS],
        "evaluation": load_evaluation_progress(project),
        "default_rule": DEFAULT_RULE_TEXT,
        "rule_draft": None,
        "reason_lines": "\n".join(reason["name"] for reason in project.reasons),
        **more,
    }


@login_required
@require_POST
def delete_project_view(request: HttpRequest, slug: str) -> HttpResponse:
    """The name of the project is typed again, so that nobody deletes another one."""
    project = permissions.project_or_404(request, slug, role="owner")
    typed = request.POST.get("name", "").strip()
    try:
        if typed != project.slug:
            message = _("Type the name of the project, {project}, to delete it.")
            raise InvalidInputError(message.format(project=project.slug), "name")
        delete_project(project, common.get_signed_in_user(request))
    except InvalidInputError as error:
        context = build_project_context(request, project, delete_error=str(error), delete_draft=typed)
        return render(request, "settings/project.html", context, status=400)
    messages.success(request, _("Project {project} is deleted.").format(project=slug))
    return redirect("settings")


def can_create_sign_in_link(by: User, user: User) -> bool:
    """A server admin may create a link for all users. An owner may create one for users who have never signed in and
    belong only to the owner's projects: a user who has signed in may have created projects."""
    if by.is_superuser or user.is_superuser or user.last_login:
        return by.is_superuser
    owned = Membership.objects.filter(user=by, role=Membership.Role.OWNER).values("project")
    return not user.memberships.exclude(project__in=owned).exists()


@login_required
@require_POST
def save_reasons_view(request: HttpRequest, slug: str) -> HttpResponse:
    """One reason on each line, in the order of the shortcuts 1 to 9. Names that remain keep their key."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    lines = common.clean_param(request.POST.get("reasons", "")).splitlines()
    names = list(dict.fromkeys(" ".join(line.split())[:60] for line in lines if line.strip()))[:MAX_REASONS]
    if names:
        project.reasons = assign_reason_keys(names, {reason["name"]: reason["key"] for reason in project.reasons})
        project.save(update_fields=["reasons"])
        messages.success(request, _("Flag reasons saved."))
    else:
        messages.error(request, _("Nothing was saved: a project needs at least one flag reason."))
    return redirect("project", project.slug)


def assign_reason_keys(names: Sequence[str], known: Mapping[str, str]) -> list[dict[str, str]]:
    """The names with their keys. Flags store the key, so a new name gets one that no other has."""
    keys = {name: known[name] for name in names if name in known}
    for name in names:
        if name not in keys:
            key = slugify(name, allow_unicode=True)[:MAX_REASON_KEY_CHARS] or name[:MAX_REASON_KEY_CHARS]
            keys[name] = find_free_key(key, keys.values())
    return [{"key": keys[name], "name": name} for name in names]


def find_free_key(key: str, taken: Collection[str]) -> str:
    """The key; if it is taken, with a number appended."""
    suffixes = chain([""], (f"-{number}" for number in count(2)))
    candidates = (key[: MAX_REASON_KEY_CHARS - len(suffix)] + suffix for suffix in suffixes)
    return next(candidate for candidate in candidates if candidate not in taken)


@login_required
@require_POST
def save_correctness_rule_view(request: HttpRequest, slug: str) -> HttpResponse:
    """A rule that is not valid is shown again with the error, and nothing changes."""
    project = permissions.project_or_404(request, slug, role="maintainer")
    rule = request.POST.get("correct", "")
    try:
        change_correctness_rule(project, rule, common.get_signed_in_user(request))
    except InvalidInputError as error:
        message = common.render_query_error(rule, error)
        context = build_project_context(request, project, rule_draft=rule, rule_error=message)
        return render(request, "settings/project.html", context, status=400)
    dispatch.send_now("evaluate_correctness", project.pk)
    messages.success(request, _("Rule saved. Re-evaluating samples in the background."))
    return redirect("project", project.slug)
