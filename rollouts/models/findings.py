"""Findings: what people made of their runs, with the samples, queries and charts that show it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from rollouts.models.projects import Project
from rollouts.models.runs import Run


class FindingQuerySet(models.QuerySet["Finding"]):
    def standing(self) -> FindingQuerySet:
        """Those that nobody has removed."""
        return self.filter(removed_at=None)


class Finding(models.Model):
    """A title, a note and exhibits. It belongs to the project, not to a run, and outlives the runs that it shows.
    Removed, never deleted; `version` rises with every change of title or note, so that no edit is lost unseen."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="findings")
    title = models.CharField(max_length=200)
    note = models.TextField(blank=True, default="", help_text="Markdown")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="findings")
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = FindingQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["project", "-updated_at"], name="finding_by_news")]

    def __str__(self) -> str:
        return self.title


class EvidenceItem(models.Model):
    """A sample, a query's counts or charts, as they were when somebody showed them here.

    `held` is all that is shown, as JSON in ASCII: later data cannot change it, and NUL in a generation, which no
    JSON column takes, comes back as it was. `run` only serves the link.
    """

    class Kind(models.TextChoices):
        SAMPLE = "sample"
        QUERY = "query"
        CHART = "chart"

    finding = models.ForeignKey(Finding, models.CASCADE, related_name="exhibits")
    kind = models.CharField(max_length=6, choices=Kind.choices)
    place = models.PositiveIntegerField(help_text="order within the finding")
    run = models.ForeignKey(Run, models.SET_NULL, null=True, blank=True, related_name="+")
    sample = models.CharField(max_length=52, blank=True, default="")
    held = models.TextField()
    words = models.TextField(blank=True, default="", help_text="what somebody says of it, Markdown")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "rollouts_exhibit"
        ordering = ["place", "pk"]

    def __str__(self) -> str:
        return f"{self.kind} {self.place} of {self.finding_id}"

    @property
    def shown(self) -> dict[str, Any]:
        return dict(json.loads(self.held))
