"""Projects and their people."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import Pages
from dashboard.api.parsers import asked, told
from dashboard.api.schema import Takes
from rollouts.errors import BadInput
from rollouts.indexing import correctness
from rollouts.lib.validation import text
from rollouts.models import Project
from rollouts.projects import projects
from rollouts.query import correctness_rule
from rollouts.replay import overrides
from workers import dispatch

REASON = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")


class Projects(APIView):
    """Projects."""

    scopes = {"POST": "admin"}
    paged = True
    takes: ClassVar[Takes] = {"POST": {"slug": "Lower-case letters, digits, - and _."}}

    def get(self, request: Request) -> Response:
        """The projects you have a role in."""
        asked(request, self)
        pages = Pages()
        page = pages.paginate_queryset(permissions.visible_projects(request).order_by("slug"), request, self) or []
        return pages.get_paginated_response([serializers.project(row, row.role_of(request.user)) for row in page])

    def post(self, request: Request) -> Response:
        """Make a project; you become its owner."""
        data = told(request, self)
        _, token = permissions.of(request)
        if token and token.project_id:
            raise PermissionDenied("This token is for one project and makes no others.")
        slug = text(data.get("slug"), "slug", most=80)
        if Project.objects.filter(slug=slug).exists():
            return Response(serializers.project(permissions.project_or_404(request, slug), "owner"))
        project, created = projects.create_project(slug, permissions.person(request))
        return Response(serializers.project(project, "owner"), status=201 if created else 200)


class OneProject(APIView):
    """One project."""

    scopes = {"PATCH": "admin"}
    takes: ClassVar[Takes] = {
        "PATCH": {
            "reasons": "[{key, name}] that a flag may have.",
            "correct": "The rule for Correct, a query; empty for the default.",
            "loosened": "{fact: why}: differences that refuse a replay and shall only warn; null takes one back.",
        }
    }

    def get(self, request: Request, slug: str) -> Response:
        """A project: reasons for flags, the rule for Correct with how many `steps` are `judged` by it, and its people
        with their roles."""
        return Response(whole(request, permissions.project_or_404(request, slug)))

    def patch(self, request: Request, slug: str) -> Response:
        """Change `reasons` ([{key, name}]), `correct` (a query, by which a worker then judges all samples anew) and
        `loosened` ({fact: why}). Needs the role maintainer."""
        data = told(request, self)
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, "maintainer")
        by = permissions.person(request)
        with transaction.atomic():
            if "reasons" in data:
                project.reasons = reasons_of(data["reasons"])
                project.save(update_fields=["reasons"])
            if "correct" in data:
                project = correctness.change(project, data["correct"], by)
            if "loosened" in data:
                loosened(project, data["loosened"], by)
        if "correct" in data:
            dispatch.send_project(project.pk)
        return Response(whole(request, project))


def loosened(project: Project, told: Any, by: User) -> None:
    """Raises BadInput."""
    if not isinstance(told, dict):
        raise BadInput("`loosened` must be an object {fact: why}.", "loosened")
    for fact, note in told.items():
        if note is None:
            overrides.tighten(project, fact, by)
        else:
            overrides.loosen(project, fact, by, note)


def whole(request: Request, project: Project) -> dict[str, Any]:
    members = project.memberships.select_related("user").order_by("user__username")
    people = [{"user": member.user.get_username(), "role": member.role} for member in members]
    done = correctness.progress(project)
    judged = {"rule": correctness_rule.rule_of(project), "steps": done.steps, "judged": done.done}
    return {**serializers.project(project, project.role_of(request.user)), "judging": judged, "members": people}


def reasons_of(rows: Any) -> list[dict[str, str]]:
    """Raises BadInput."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= 50 or not all(isinstance(row, dict) for row in rows):
        raise BadInput("`reasons` must be a list of 1 to 50 objects {key, name}.", "reasons")
    found: dict[str, str] = {}
    for row in rows:
        key = text(row.get("key"), "reasons", most=40)
        if not REASON.match(key) or key in found:
            raise BadInput(f"The reason key {key!r} must be new and of a-z 0-9 -.", "reasons")
        found[key] = text(row.get("name"), "reasons", most=80) or key
    return [{"key": key, "name": name} for key, name in found.items()]


class Members(APIView):
    """The people of a project."""

    scopes = {"POST": "admin"}
    takes: ClassVar[Takes] = {
        "POST": {"user": "Name of an account.", "role": "viewer, annotator, maintainer, owner, or empty for none."}
    }

    def post(self, request: Request, slug: str) -> Response:
        """Give `user` the role viewer, annotator, maintainer or owner, or none with an empty `role`."""
        data = told(request, self)
        project = permissions.project_or_404(request, slug, scope="admin")
        role = text(data.get("role"), "role", most=12)
        projects.set_role(project, text(data.get("user"), "user", most=150), role, permissions.person(request))
        return Response(whole(request, project))
