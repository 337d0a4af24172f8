"""Projects and their members."""

import re
from typing import Any

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import serialize_project
from rollouts.errors import InvalidInputError
from rollouts.indexing import change_correctness_rule, load_evaluation_progress
from rollouts.lib import parse_text
from rollouts.models import Project
from rollouts.projects import create_project, set_role
from rollouts.query import get_rule_text
from rollouts.replay import override_check, restore_check
from workers import dispatch

REASON_KEY_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")


class Projects(ApiView):
    """Projects."""

    scopes = {"POST": "admin"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {"POST": {"slug": "Lower-case letters, digits, - and _."}}

    def get(self, request: Request) -> Response:
        """The projects you have a role in."""
        self.parse_query()
        rows = permissions.visible_projects(request).order_by("slug")
        return self.paginate(rows, lambda row: serialize_project(row, row.role_of(request.user)))

    def post(self, request: Request) -> Response:
        """Create a project; you become its owner."""
        data = self.parse_body()
        _, token = permissions.resolve_caller(request)
        if token and token.project_id:
            raise PermissionDenied("This token belongs to one project and cannot create others.")
        slug = data.text("slug", 80)
        if Project.objects.filter(slug=slug).exists():
            known = permissions.project_or_404(request, slug)
            return Response(serialize_project(known, known.role_of(self.user)))
        project, created = create_project(slug, self.user)
        role = project.role_of(self.user)
        return Response(serialize_project(project, role), status=201 if created else 200)


class OneProject(ApiView):
    """One project."""

    scopes = {"PATCH": "admin"}
    takes = {
        "PATCH": {
            "reasons": "[{key, name}] that a flag may have.",
            "correct": "The correctness rule, a query; empty for the default.",
            "loosened": "{fact: reason}: differences that only warn instead of preventing a replay; null restores one.",
        }
    }

    def get(self, request: Request, slug: str) -> Response:
        """A project: reasons for flags, the correctness rule, in how many `steps` it is evaluated (`judged`), and its
        members with their roles."""
        return Response(serialize_full_project(request, permissions.project_or_404(request, slug)))

    def patch(self, request: Request, slug: str) -> Response:
        """Change `reasons` ([{key, name}]), `correct` (a query; a worker then evaluates all samples again) and
        `loosened` ({fact: reason}). Needs the role maintainer."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, "maintainer")
        with transaction.atomic():
            if "reasons" in data:
                project.reasons = parse_reasons(data["reasons"])
                project.save(update_fields=["reasons"])
            if "correct" in data:
                project = change_correctness_rule(project, data["correct"], self.user)
            if "loosened" in data:
                update_overrides(project, data["loosened"], self.user)
        if "correct" in data:
            dispatch.send_now("evaluate_correctness", project.pk)
        return Response(serialize_full_project(request, project))


def update_overrides(project: Project, overrides: Any, user: User) -> None:
    """Raises InvalidInputError."""
    if not isinstance(overrides, dict):
        raise InvalidInputError("`loosened` must be an object {fact: reason}.", "loosened")
    for fact, note in overrides.items():
        if note is None:
            restore_check(project, fact, user)
        else:
            override_check(project, fact, user, note)


def serialize_full_project(request: Request, project: Project) -> dict[str, Any]:
    members = project.memberships.select_related("user").order_by("user__username")
    progress = load_evaluation_progress(project)
    return {
        **serialize_project(project, project.role_of(request.user)),
        "judging": {"rule": get_rule_text(project), "steps": progress.steps, "judged": progress.done},
        "members": [{"user": member.user.get_username(), "role": member.role} for member in members],
    }


def parse_reasons(rows: Any) -> list[dict[str, str]]:
    """Raises InvalidInputError."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= 50 or not all(isinstance(row, dict) for row in rows):
        raise InvalidInputError("`reasons` must be a list of 1 to 50 objects {key, name}.", "reasons")
    names: dict[str, str] = {}
    for row in rows:
        key = parse_text(row.get("key"), "reasons", max_chars=40)
        if not REASON_KEY_PATTERN.match(key) or key in names:
            raise InvalidInputError(f"The reason key {key!r} must be unique and consist of a-z 0-9 -.", "reasons")
        names[key] = parse_text(row.get("name"), "reasons", max_chars=80) or key
    return [{"key": key, "name": name} for key, name in names.items()]


class Members(ApiView):
    """The members of a project."""

    scopes = {"POST": "admin"}
    takes = {"POST": {"user": "A user name.", "role": "viewer, annotator, maintainer, owner, or empty for none."}}

    def post(self, request: Request, slug: str) -> Response:
        """Give `user` the role viewer, annotator, maintainer or owner. An empty `role` removes the member."""
        data = self.parse_body()
        project = permissions.project_or_404(request, slug, role="owner")
        role = data.text("role", 12)
        set_role(project, data.text("user", 150), role, self.user)
        return Response(serialize_full_project(request, project))
