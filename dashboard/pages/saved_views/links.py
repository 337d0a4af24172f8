"""Which views a page offers, and the URL that opens one."""

from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.urls import reverse

from rollouts.models import Project, Run, SavedView

MAX_LISTED_VIEWS = 100
PAGES_WITHOUT_RUN = (SavedView.Page.RUNS, SavedView.Page.SEARCH)  # their URL names


def find_views(user: User, page: str = "", project: Project | None = None) -> QuerySet[SavedView]:
    """The views that the user may open, by name. Pages of a run offer those of its project."""
    views: QuerySet[SavedView] = SavedView.objects.visible_to(user).select_related("project", "owner")
    if page:
        views = views.filter(page=page)
    if project:
        views = views.filter(project=project)
    return views.order_by("name", "pk")[:MAX_LISTED_VIEWS]


def build_view_url(view: SavedView, run: Run | None) -> str:
    """The page of a view; for a page of a run, of this run."""
    if view.page in PAGES_WITHOUT_RUN:
        path = reverse(view.page)
    elif run is None:
        return reverse("saved-view", args=[view.pk])
    elif view.page == SavedView.Page.OVERVIEW:
        path = reverse("run", args=[run.uid])
    else:
        path = reverse("step", args=[run.uid, "all" if view.page == SavedView.Page.ALL_STEPS else "latest"])
    return f"{path}?{view.params}" if view.params else path
