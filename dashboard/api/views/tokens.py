"""Tokens: created, listed and revoked by owners of a project."""

from django.db.models import Q, QuerySet
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView
from dashboard.api.serializers import serialize_token
from rollouts.models import Membership, Project, Token
from rollouts.projects import MAX_TOKEN_DAYS, create_project, create_token, revoke_token


class Tokens(ApiView):
    """Tokens."""

    scopes = {"GET": "admin", "POST": "admin"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "POST": {
            "name": "Its purpose.",
            "project": "A slug; the project is created if it does not exist. Default: all projects that you may see.",
            "scopes": "Some of ingest, read, annotate, admin; a list or comma-separated.",
            "days": "Days until it expires. Default: it does not expire.",
        }
    }

    def get(self, request: Request) -> Response:
        """Your tokens and those of the projects you own; never their secrets."""
        self.parse_query()
        _, token = permissions.resolve_caller(request)
        own = {"user": self.user, **({"project": token.project_id} if token and token.project_id else {})}
        rows = manageable_tokens(request, Q(**own)).select_related("user", "project")
        return self.paginate(rows.order_by("-pk"), serialize_token)

    def post(self, request: Request) -> Response:
        """Create a token with `scopes` for `project`, which is created if necessary: then `project_created` is true.
        Only this response has the secret."""
        data = self.parse_body()
        project, created = find_or_create_project(request, data.text("project", 80))
        days = data.integer("days", minimum=1, maximum=MAX_TOKEN_DAYS)
        name, scopes = data.get("name") or "", data.get("scopes")
        token, secret = create_token(self.user, name=name, scopes=scopes, project=project, days=days)
        return Response({**serialize_token(token), "token": secret, "project_created": created}, status=201)


class OneToken(ApiView):
    """One token."""

    scopes = {"DELETE": "admin"}

    def delete(self, request: Request, pk: int) -> Response:
        """Revoke it. It stops working at once."""
        _, token = permissions.resolve_caller(request)
        own = Q(pk=token.pk) if token and token.project_id else Q(user=self.user)
        row = manageable_tokens(request, own).filter(pk=pk).first()
        if row is None:
            raise Http404("There is no such token that you may revoke.")
        revoke_token(row, self.user)
        return Response(status=204)


def manageable_tokens(request: Request, own: Q) -> QuerySet[Token]:
    """The caller's `own` tokens, and those of the projects that the caller owns and its token may access."""
    projects, user = permissions.visible_projects(request), permissions.require_user(request)
    if not user.is_superuser:
        owned = Membership.objects.filter(user=user, role=Membership.Role.OWNER)
        projects = projects.filter(pk__in=owned.values("project"))
    return Token.objects.filter(own | Q(project__in=projects))


def find_or_create_project(request: Request, slug: str) -> tuple[Project | None, bool]:
    """(the project of a new token, whether it was created). None for a token for all projects that the user may see."""
    _, token = permissions.resolve_caller(request)
    bound = token.project if token else None
    slug = slug or (bound.slug if bound else "")
    if not slug:
        return None, False
    if bound is None and not Project.objects.filter(slug=slug).exists():
        return create_project(slug, permissions.require_user(request))
    return permissions.project_or_404(request, slug, role="owner"), False
