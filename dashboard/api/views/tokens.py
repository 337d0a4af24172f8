"""Tokens: made, listed and revoked by owners of a project."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import Q
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dashboard import permissions
from dashboard.api import serializers
from dashboard.api.pagination import ApiPagination
from dashboard.api.parsers import parse_json_body, parse_query_params
from dashboard.api.schema import AcceptedParams
from rollouts.lib import parse_integer, parse_text
from rollouts.models import Membership, Project, ProjectQuerySet, Token
from rollouts.projects import create_project, create_token, revoke_token


def owned_projects(request: Request) -> ProjectQuerySet:
    """Projects in which the person is owner, less those the token is not for."""
    visible, user = permissions.visible_projects(request), permissions.require_user(request)
    if user.is_superuser:
        return visible
    mine = Membership.objects.filter(user=user, role=Membership.Role.OWNER)
    return visible.filter(pk__in=mine.values("project"))


class Tokens(APIView):
    """Tokens."""

    scopes = {"GET": "admin", "POST": "admin"}
    paged = True
    takes: ClassVar[AcceptedParams] = {
        "POST": {
            "name": "What it is for.",
            "project": "A slug, made if nobody has it; left out: all that you may see.",
            "scopes": "Some of ingest, read, annotate, admin; a list or comma-separated.",
            "days": "Ends after so many; without it, when revoked.",
        }
    }

    def get(self, request: Request) -> Response:
        """Your tokens and those of the projects you own; never their secrets."""
        parse_query_params(request, self)
        _, token = permissions.resolve_caller(request)
        mine = (
            Q(user=request.user) if not (token and token.project_id) else Q(user=request.user, project=token.project_id)
        )
        rows = Token.objects.filter(mine | Q(project__in=owned_projects(request))).select_related("user", "project")
        pages = ApiPagination()
        page = pages.paginate_queryset(rows.order_by("-pk"), request, self) or []
        return pages.get_paginated_response([serializers.serialize_token(row) for row in page])

    def post(self, request: Request) -> Response:
        """Make a token for `project` (made if it is missing) with `scopes`; the answer alone holds the secret."""
        data = parse_json_body(request, self)
        slug = parse_text(data.get("project"), "project", most=80)
        project = project_for_token(request, slug)
        days = parse_integer(data.get("days"), "days", least=1, most=36_500)
        token, secret = create_token(
            permissions.require_user(request),
            name=data.get("name") or "",
            scopes=data.get("scopes"),
            project=project,
            days=days,
        )
        return Response({**serializers.serialize_token(token), "token": secret}, status=201)


def project_for_token(request: Request, slug: str) -> Project | None:
    """The project, made if nobody has it; None for a token that reaches all that its person may see."""
    _, token = permissions.resolve_caller(request)
    bound = token.project if token else None
    slug = slug or (bound.slug if bound else "")
    if not slug:
        return None
    if bound is None and not Project.objects.filter(slug=slug).exists():
        return create_project(slug, permissions.require_user(request))[0]
    return permissions.project_or_404(request, slug, scope="admin")


class OneToken(APIView):
    """One token."""

    scopes = {"DELETE": "admin"}

    def delete(self, request: Request, pk: int) -> Response:
        """Revoke it: from now on nobody gets in with it."""
        _, token = permissions.resolve_caller(request)
        own = Q(user=request.user) if not (token and token.project_id) else Q(pk=token.pk)
        row = Token.objects.filter(own | Q(project__in=owned_projects(request)), pk=pk).first()
        if row is None:
            raise Http404("There is no such token that you may revoke.")
        revoke_token(row, permissions.require_user(request))
        return Response(status=204)
