"""Saved views: the state of a page with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q

from rollouts.models.projects import Project

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class SavedViewQuerySet(models.QuerySet["SavedView"]):
    def visible_to(self, user: User) -> SavedViewQuerySet:
        """The user's own views, and those that are shared with a project of the user."""
        projects = Project.objects.visible_to(user)
        of_project = Q(project=None) | Q(project__in=projects)
        return self.filter(of_project & (Q(owner=user) | Q(shared=True, project__in=projects)))


class SavedView(models.Model):
    """`params` is the query string of the page, without what names a run or a sample. A view without a project is about
    the runs of all projects; it cannot be shared."""

    class Page(models.TextChoices):
        RUNS = "runs"
        OVERVIEW = "overview"
        STEP = "step"
        ALL_STEPS = "all-steps"
        SEARCH = "search"

    project = models.ForeignKey(Project, models.CASCADE, null=True, blank=True, related_name="saved_views")
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="saved_views")
    page = models.CharField(max_length=12, choices=Page.choices)
    name = models.CharField(max_length=80)
    params = models.TextField(blank=True, default="", help_text="query string")
    shared = models.BooleanField(default=False, help_text="with the members of the project")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar = SavedViewQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "owner", "page", "name"], name="one_view_per_name"),
            models.UniqueConstraint(
                fields=["owner", "page", "name"], condition=Q(project=None), name="one_view_per_name_of_all_projects"
            ),
        ]

    def __str__(self) -> str:
        return self.name
