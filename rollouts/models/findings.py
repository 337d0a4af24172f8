"""Findings: notes about runs, with samples, queries and charts as evidence."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from django.conf import settings
from django.db import models

from rollouts.models.projects import Project
from rollouts.models.runs import Run


class FindingQuerySet(models.QuerySet["Finding"]):
    def active(self) -> FindingQuerySet:
        """Findings that are not removed."""
        return self.filter(removed_at=None)


class Finding(models.Model):
    """A title, a note and evidence items. It belongs to the project and remains when its runs are deleted. A removed
    finding is not deleted. `version` increases with each change of title or note, to detect concurrent edits."""

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
    """A snapshot of a sample, of a query's counts, of charts or of the rates of two runs.

    `held` is the full content as ASCII JSON. Later data cannot change it, and it preserves NUL characters, which JSON
    columns do not accept. `run` is only used for the link.
    """

    class Kind(models.TextChoices):
        SAMPLE = "sample"
        QUERY = "query"
        CHART = "chart"
        RATES = "rates"

    finding = models.ForeignKey(Finding, models.CASCADE, related_name="exhibits")
    kind = models.CharField(max_length=6, choices=Kind.choices)
    place = models.PositiveIntegerField(help_text="order within the finding")
    run = models.ForeignKey(Run, models.SET_NULL, null=True, blank=True, related_name="+")
    sample = models.CharField(max_length=52, blank=True, default="")
    held = models.TextField()
    words = models.TextField(blank=True, default="", help_text="comment, Markdown")
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
