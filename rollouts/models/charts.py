"""Charts of the overview: how a project arranges them, and what is known of the curves of queries."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from rollouts.models.projects import Project
from rollouts.models.runs import Run


class ChartArrangement(models.Model):
    """How a project arranges the charts of all its runs. Charts are named by their keys. `queries` are the charts of
    queries that the project keeps, as the text of `ChartQuery`."""

    project = models.OneToOneField(Project, models.CASCADE, related_name="chart_arrangement")
    pinned = models.JSONField(default=list, blank=True)
    order = models.JSONField(default=list, blank=True)
    wide = models.JSONField(default=list, blank=True)
    queries = models.JSONField(default=list, blank=True)
    version = models.PositiveIntegerField(default=0, help_text="increases with each change")
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    class Meta:
        db_table = "rollouts_chartboard"

    def __str__(self) -> str:
        return f"charts of {self.project_id}"


class QueryCurve(models.Model):
    """A cache: what a query finds in each step of a run. `points` is JSON, see `rollouts/charts/step_counts.py`."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="+")
    digest = models.CharField(max_length=32, help_text="of the query and the split")
    points = models.BinaryField(default=b"")
    used_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "digest"], name="one_curve_per_query")]

    def __str__(self) -> str:
        return f"{self.digest} of {self.run_id}"
