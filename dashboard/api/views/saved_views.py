"""Saved views: query, columns, order and charts of a page with a name."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard import permissions
from dashboard.api.base import ApiView, filter_by_owner, row_or_404
from dashboard.api.serializers import pick_fields
from dashboard.public_urls import build_public_url
from rollouts.models import SavedView
from rollouts.saved_views import delete_view, may_change_view, save_view, update_view

SHARE_ROLE = permissions.ROLE_BY_SCOPE["annotate"]


class SavedViews(ApiView):
    """Saved views."""

    scopes = {"POST": "annotate"}
    statuses = {"POST": ("201",)}
    paged = True
    takes = {
        "GET": {"project": "A slug.", "on": f"The page: one of {', '.join(SavedView.Page.values)}."},
        "POST": {
            "page": f"One of {', '.join(SavedView.Page.values)}.",
            "name": "Replaces your view with this name on the page.",
            "params": "The query string of the page, such as `q=score<0.2&sort=-len`.",
            "project": "A slug; only views of the run list may leave it out.",
            "shared": "true: members of the project see it.",
        },
    }

    def get(self, request: Request) -> Response:
        """Your views, and those that are shared with a project of yours, by `project` and page (`on`)."""
        query = self.parse_query()
        views = filter_by_owner(visible_views(request), request, query)
        if page := query.choice("on", SavedView.Page.values):
            views = views.filter(page=page)
        return self.paginate(views.order_by("name", "pk"), serialize_view)

    def post(self, request: Request) -> Response:
        """Save a view."""
        data = self.parse_body()
        slug, shared = data.text("project", 80), data.boolean("shared")
        project = permissions.project_or_404(request, slug) if slug else None
        if shared and project:
            permissions.require_role(request, project, SHARE_ROLE)
        fields = {name: data.get(name, "") for name in ("page", "name", "params")}
        return Response(serialize_view(save_view(self.user, project=project, shared=shared, **fields)), status=201)


class OneSavedView(ApiView):
    """One saved view."""

    scopes = {"PATCH": "annotate", "DELETE": "annotate"}
    takes = {
        "PATCH": {
            "name": "A name that is not taken.",
            "params": "Replaces the query string.",
            "shared": "true: members of the project see it.",
        }
    }

    def get(self, request: Request, pk: int) -> Response:
        """A saved view."""
        return Response(serialize_view(row_or_404(visible_views(request), pk, "view")))

    def patch(self, request: Request, pk: int) -> Response:
        """Change `name`, `params` or `shared`: the owner of the view or of the project."""
        data = self.parse_body()
        view = get_changeable_view_or_404(request, pk)
        fields: dict[str, Any] = {name: data[name] for name in ("name", "params") if name in data}
        if "shared" in data:
            fields["shared"] = data.boolean("shared")
            if fields["shared"] and view.project:
                permissions.require_role(request, view.project, SHARE_ROLE)
        return Response(serialize_view(update_view(view, self.user, **fields)))

    def delete(self, request: Request, pk: int) -> Response:
        """Delete a view: the owner of the view or of the project."""
        self.parse_query()
        delete_view(get_changeable_view_or_404(request, pk), self.user)
        return Response(status=204)


def visible_views(request: Request) -> QuerySet[SavedView]:
    """With a token for one project, only views of the project."""
    user, token = permissions.require_user(request), permissions.resolve_caller(request)[1]
    views: QuerySet[SavedView] = SavedView.objects.visible_to(user).select_related("project", "owner")
    return views.filter(project=token.project_id) if token and token.project_id else views


def get_changeable_view_or_404(request: Request, pk: int) -> SavedView:
    view = row_or_404(visible_views(request), pk, "view")
    if not may_change_view(view, permissions.require_user(request)):
        raise PermissionDenied("Only the owner of the view or of the project can change it.")
    return view


def serialize_view(row: SavedView) -> dict[str, Any]:
    return {
        "id": row.pk,
        "project": row.project.slug if row.project else None,
        "owner": row.owner.get_username(),
        "url": build_public_url(f"/views/{row.pk}/"),
        **pick_fields(row, "page", "name", "params", "shared", "created_at", "updated_at"),
    }
