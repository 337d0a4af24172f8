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
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rollouts.errors import InvalidInputError
from rollouts.indexing import change_correctness_rule, load_evaluation_progress
from rollouts.lib import parse_text
from rollouts.models import Project
from rollouts.projects import create_project, set_role
from rollouts.query import get_rule_text
from rollouts.replay import override_check, restore_check
from workers import dispatch

REASON = re.compile(r"[a-z0-9][a-z0-9-]{0,39}\Z")


class Projects(APIView):
    """Projects."""

    scopes = {"POST": "admin"}
    paged = True
    takes: ClassVar[AcceptedParams] = {"POST": {"slug": "Lower-case letters, digits, - and _."}}

    def get(self, request: Request) -> Response:
        """The projects you have a role in."""
        parse_query_params(request, self)
        pages = ApiPagination()
        page = pages.paginate_queryset(permissions.visible_projects(request).order_by("slug"), request, self) or []
        return pages.get_paginated_response(
            [serializers.serialize_project(row, row.role_of(request.user)) for row in page]
        )

    def post(self, request: Request) -> Response:
        """Make a project; you become its owner."""
        data = parse_json_body(request, self)
        _, token = permissions.resolve_caller(request)
        if token and token.project_id:
            raise PermissionDenied("This token is for one project and makes no others.")
        slug = parse_text(data.get("slug"), "slug", most=80)
        if Project.objects.filter(slug=slug).exists():
            return Response(serializers.serialize_project(permissions.project_or_404(request, slug), "owner"))
        project, created = create_project(slug, permissions.require_user(request))
        return Response(serializers.serialize_project(project, "owner"), status=201 if created else 200)


class OneProject(APIView):
    """One project."""

    scopes = {"PATCH": "admin"}
    takes: ClassVar[AcceptedParams] = {
        "PATCH": {
            "reasons": "[{key, name}] that a flag may have.",
            "correct": "The rule for Correct, a query; empty for the default.",
            "loosened": "{fact: why}: differences that refuse a replay and shall only warn; null takes one back.",
        }
    }

    def get(self, request: Request, slug: str) -> Response:
        """A project: reasons for flags, the rule for Correct with how many `steps` are `judged` by it, and its people
        with their roles."""
        return Response(serialize_full_project(request, permissions.project_or_404(request, slug)))

    def patch(self, request: Request, slug: str) -> Response:
        """Change `reasons` ([{key, name}]), `correct` (a query, by which a worker then judges all samples anew) and
        `loosened` ({fact: why}). Needs the role maintainer."""
        data = parse_json_body(request, self)
        project = permissions.project_or_404(request, slug)
        permissions.require_role(request, project, "maintainer")
        by = permissions.require_user(request)
        with transaction.atomic():
            if "reasons" in data:
                project.reasons = parse_reasons(data["reasons"])
                project.save(update_fields=["reasons"])
            if "correct" in data:
                project = change_correctness_rule(project, data["correct"], by)
            if "loosened" in data:
                update_overrides(project, data["loosened"], by)
        if "correct" in data:
            dispatch.send_project(project.pk)
        return Response(serialize_full_project(request, project))


def update_overrides(project: Project, told: Any, by: User) -> None:
    """Raises BadInput."""
    if not isinstance(told, dict):
        raise InvalidInputError("`loosened` must be an object {fact: why}.", "loosened")
    for fact, note in told.items():
        if note is None:
            restore_check(project, fact, by)
        else:
            override_check(project, fact, by, note)


def serialize_full_project(request: Request, project: Project) -> dict[str, Any]:
    members = project.memberships.select_related("user").order_by("user__username")
    people = [{"user": member.user.get_username(), "role": member.role} for member in members]
    done = load_evaluation_progress(project)
    judged = {"rule": get_rule_text(project), "steps": done.steps, "judged": done.done}
    return {
        **serializers.serialize_project(project, project.role_of(request.user)),
        "judging": judged,
        "members": people,
    }


def parse_reasons(rows: Any) -> list[dict[str, str]]:
    """Raises BadInput."""
    if not isinstance(rows, list) or not 1 <= len(rows) <= 50 or not all(isinstance(row, dict) for row in rows):
        raise InvalidInputError("`reasons` must be a list of 1 to 50 objects {key, name}.", "reasons")
    found: dict[str, str] = {}
    for row in rows:
        key = parse_text(row.get("key"), "reasons", most=40)
        if not REASON.match(key) or key in found:
            raise InvalidInputError(f"The reason key {key!r} must be new and of a-z 0-9 -.", "reasons")
        found[key] = parse_text(row.get("name"), "reasons", most=80) or key
    return [{"key": key, "name": name} for key, name in found.items()]


class Members(APIView):
    """The people of a project."""

    scopes = {"POST": "admin"}
    takes: ClassVar[AcceptedParams] = {
        "POST": {"user": "Name of an account.", "role": "viewer, annotator, maintainer, owner, or empty for none."}
    }

    def post(self, request: Request, slug: str) -> Response:
        """Give `user` the role viewer, annotator, maintainer or owner, or none with an empty `role`."""
        data = parse_json_body(request, self)
        project = permissions.project_or_404(request, slug, scope="admin")
        role = parse_text(data.get("role"), "role", most=12)
        set_role(project, parse_text(data.get("user"), "user", most=150), role, permissions.require_user(request))
        return Response(serialize_full_project(request, project))
