"""The members of a project and their roles; new users get a link that signs them in once."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.models import User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from dashboard import permissions
from dashboard.pages.common import clean_param, get_signed_in_user
from dashboard.pages.settings.projects import (
    build_project_context,
    build_settings_context,
    can_create_sign_in_link,
)
from dashboard.sign_in import create_sign_in_link, end_other_sessions
from rollouts.errors import InvalidInputError, RolloutError
from rollouts.models import Project
from rollouts.projects import record_audit_entry, set_role


@login_required
@require_POST
def save_member_view(request: HttpRequest, slug: str) -> HttpResponse:
    """`user` gets `role`, or is removed if it is empty. A name without an account gets one, and a link to sign in. With
    `new`, the role of a member does not change."""
    project = permissions.project_or_404(request, slug, role="owner")
    name, role = read_name(request), request.POST.get("role", "")
    try:
        if request.POST.get("new") and (member := project.memberships.filter(user__username=name).first()):
            message = _("{name} is {role} of this project already. Change the role in the list of members.")
            raise InvalidInputError(message.format(name=name, role=member.role), "user")
        with transaction.atomic():
            new = create_account_if_missing(name) if role else None
            set_role(project, name, role, get_signed_in_user(request))
    except RolloutError as error:
        if request.POST.get("new"):
            context = {"member_draft": {"name": clean_param(name), "role": role}, "member_error": str(error)}
            return render(
                request, "settings/project.html", build_project_context(request, project, **context), status=400
            )
        messages.error(request, str(error))
        return redirect("project", project.slug)
    if new is not None:
        return render_member_link(request, project, new)
    messages.success(request, _("Saved: {name}.").format(name=name))
    return redirect("project", project.slug) if project.role_of(request.user) else redirect("settings")


@login_required
@require_POST
def save_member_of_projects_view(request: HttpRequest) -> HttpResponse:
    """`user` gets `role` in each `project`, or in none if one is refused."""
    owner, name, role = get_signed_in_user(request), read_name(request), request.POST.get("role", "")
    slugs = dict.fromkeys(request.POST.getlist("project"))
    projects = [permissions.project_or_404(request, slug, role="owner") for slug in slugs]
    try:
        if not projects or not role:
            raise InvalidInputError(_("Choose a role and at least one project."), "project")
        with transaction.atomic():
            new = create_account_if_missing(name)
            for project in projects:
                set_role(project, name, role, owner)
    except RolloutError as error:
        draft = {"name": clean_param(name), "role": role, "projects": slugs}
        context = build_settings_context(request, member_draft=draft, member_error=str(error))
        return render(request, "settings/page.html", context, status=400)
    names = ", ".join(project.slug for project in projects)
    messages.success(request, _("{name} is {role} of {projects}.").format(name=name, role=role, projects=names))
    if new is None:
        return redirect("settings")
    response = render(request, "settings/page.html", build_settings_context(request, invitation=build_invitation(new)))
    response["Cache-Control"] = "no-store"
    return response


@login_required
@require_POST
def create_member_link_view(request: HttpRequest, slug: str) -> HttpResponse:
    """A new link for a member who lost the first link or the password, or whose link has expired."""
    project = permissions.project_or_404(request, slug, role="owner")
    name, owner = request.POST.get("user", "").strip(), get_signed_in_user(request)
    member = get_object_or_404(project.memberships.select_related("user"), user__username=name, user__is_active=True)
    if not can_create_sign_in_link(owner, member.user):
        message = _(
            "Only a server admin can create a sign-in link for {name}: this user has already signed in or "
            "belongs to other projects."
        )
        messages.error(request, message.format(name=name))
        return redirect("project", project.slug)
    record_audit_entry(owner, "member.link", name, project=project)
    return render_member_link(request, project, member.user)


def read_name(request: HttpRequest) -> str:
    """The name as accounts have it: letters of an input method, such as full-width ones, become the usual ones."""
    return User.normalize_username(request.POST.get("user", "").strip())


def render_member_link(request: HttpRequest, project: Project, user: User) -> HttpResponse:
    context = build_project_context(request, project, invitation=build_invitation(user))
    response = render(request, "settings/project.html", context)
    response["Cache-Control"] = "no-store"
    return response


def build_invitation(user: User) -> dict[str, Any]:
    """What `settings/invitation.html` shows."""
    return {"name": user.get_username(), "link": create_sign_in_link(user), "new": user.last_login is None}


def create_account_if_missing(name: str) -> User | None:
    """The new account, None if there is one already. Raises InvalidInputError if the name is not valid."""
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError as error:
        raise InvalidInputError(_("A name can contain only letters, digits and @ . + - _."), "user") from error
    if len(name) > 150:
        raise InvalidInputError(_("A name can have at most 150 characters."), "user")
    if User.objects.filter(username=name).exists():
        return None
    return User.objects.create_user(name)


@login_required
@require_POST
def change_password_view(request: HttpRequest) -> HttpResponse:
    form = SetPasswordForm(get_signed_in_user(request), request.POST)
    if form.is_valid():
        update_session_auth_hash(request, form.save())
        end_other_sessions(get_signed_in_user(request), request.session)  # type: ignore[arg-type]
        messages.success(request, _("Password changed. You are signed out everywhere else."))
    else:
        messages.error(request, " ".join(str(message) for errors in form.errors.values() for message in errors))
    return redirect("settings")
