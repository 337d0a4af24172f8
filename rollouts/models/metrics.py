"""Metrics: the newest points are rows, the others are packed into blocks."""

from django.db import models

from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import STEP_KIND_CHOICES


class MetricRow(models.Model):
    """The newest points of a run, one row per logged step, until `compact_metric_rows` packs them into blocks."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="metric_rows")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="metric_rows")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    time = models.FloatField(null=True, blank=True, help_text="client clock, seconds since 1970")
    values = models.TextField(help_text="JSON {name: number or null}")

    def __str__(self) -> str:
        return f"step {self.step} of {self.run_id}"


class Series(models.Model):
    """A metric of one attempt. Its points are in blocks, the newest ones in `MetricRow`."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="series")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="series")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    name = models.CharField(max_length=300)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt", "step_kind", "name"], name="one_series_per_name")
        ]
        verbose_name_plural = "series"

    def __str__(self) -> str:
        return self.name


class Block(models.Model):
    """Packed points of a series in step order: `steps` little-endian int64, `values` float64 (NaN for null).

    `steps` is empty if the `count` steps from `first` to `last` have equal distances, as in most blocks.
    """

    series = models.ForeignKey(Series, models.CASCADE, related_name="blocks")
    first = models.BigIntegerField()
    last = models.BigIntegerField()
    count = models.PositiveIntegerField()
    steps = models.BinaryField()
    values = models.BinaryField()

    class Meta:
        indexes = [models.Index(fields=["series", "first"], name="block_by_step")]

    def __str__(self) -> str:
        return f"{self.count} points of {self.series_id}"
