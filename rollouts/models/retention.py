"""What a project keeps of its training steps."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from rollouts.models.projects import Project


class RetentionPolicy(models.Model):
    """Which training steps and raw bytes a project keeps. Without a row, or with the defaults, it keeps everything.

    `train` says what remains of a step that is older than `after_days`: all, only every `every`-th step, or a sample of
    `groups` whole groups plus the `extremes` best and worst ones. Steps over a limit lose all samples that nothing
    protects. `cursor` is the last step that the current pass has checked; `lease_until` belongs to the worker that
    checks. `report` is the last dry run.
    """

    class Train(models.TextChoices):
        ALL = "all"
        EVERY = "every"
        SAMPLE = "sample"

    class Rule(models.TextChoices):
        """Why samples of a step were dropped."""

        EVERY = "every"
        SAMPLE = "sample"
        AGE = "age"
        COUNT = "count"
        SIZE = "size"

    project = models.OneToOneField(Project, models.CASCADE, related_name="retention")
    train = models.CharField(max_length=6, choices=Train.choices, default=Train.ALL)
    every = models.PositiveIntegerField(default=10)
    groups = models.PositiveIntegerField(default=16)
    extremes = models.PositiveIntegerField(default=2)
    seed = models.PositiveIntegerField(default=0)
    after_days = models.PositiveIntegerField(default=30)
    raw_after_days = models.PositiveIntegerField(null=True, blank=True, help_text="null: raw bytes are kept")
    max_age_days = models.PositiveIntegerField(null=True, blank=True)
    max_steps = models.PositiveIntegerField(null=True, blank=True, help_text="training steps of a run with all samples")
    max_bytes = models.PositiveBigIntegerField(null=True, blank=True, help_text="of bodies and raw dumps")
    updated_at = models.DateTimeField(default=timezone.now)
    updated_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    cursor = models.PositiveBigIntegerField(default=0)
    lease_until = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True, help_text="when the last pass ended")
    report = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "retention policies"

    def __str__(self) -> str:
        return f"retention of {self.project_id}"

    @property
    def keeps_all_samples(self) -> bool:
        return self.train == self.Train.ALL and not (self.max_age_days or self.max_steps or self.max_bytes)

    @property
    def keeps_everything(self) -> bool:
        return self.keeps_all_samples and self.raw_after_days is None
