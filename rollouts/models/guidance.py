"""Rules by which the labels of a project act on its running trainings."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from rollouts.models.projects import Project


class GuidanceVersion(models.Model):
    """A version of a project's guidance rules. A row never changes: an edit adds the next `number`."""

    class Baseline(models.TextChoices):
        """Whether masked samples count in the group baseline: as the trainer does it, or not."""

        TRAINER = "trainer"
        EXCLUDE = "exclude"

    project = models.ForeignKey(Project, models.CASCADE, related_name="guidance_versions")
    number = models.PositiveIntegerField()
    rules = models.JSONField()
    baseline = models.CharField(max_length=7, choices=Baseline.choices, default=Baseline.TRAINER)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "number"], name="one_guidance_per_number")]

    def __str__(self) -> str:
        return f"guidance {self.number} of {self.project_id}"
