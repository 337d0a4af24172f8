"""Steps and their statistics."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models

from rolloutdeck.protocol import SPLITS, STEP_KINDS
from rollouts.models.runs import Attempt, Run

SPLIT_CHOICES = [(split, split) for split in SPLITS]
STEP_KIND_CHOICES = [(kind, kind) for kind in STEP_KINDS]
# The columns of samples whose lowest and highest value a step stores, by the name of the ordering.
RANGED_COLUMNS = {
    "score": "score", "len": "chars", "tokens": "tokens", "adv": "advantage", "staleness": "staleness",
    "duration": "duration",
}  # fmt: skip
STEP_POSITION = ("run_id", "attempt_id", "split", "step_kind", "step")


def get_step_position(row: models.Model) -> dict[str, Any]:
    """Returns the fields that identify the step of a row: of a step, dump, artifact or pin."""
    return {name: getattr(row, name) for name in STEP_POSITION}


class StepQuerySet(models.QuerySet["Step"]):
    def current(self) -> StepQuerySet:
        """Steps that no later attempt has superseded."""
        return self.filter(superseded=False)

    def find_kind(self) -> str:
        """The step kind that pages show: the first one of `STEP_KINDS` that these steps have. Empty without steps."""
        kinds = set(self.order_by().values_list("step_kind", flat=True).distinct())
        return next((kind for kind in STEP_KINDS if kind in kinds), "")

    def get_locked(self, run: Run, attempt: Attempt, split: str, step_kind: str, step: int) -> Step:
        """Returns the row of a step, locked until the caller's transaction ends. Creates it if there is none."""
        row, _ = self.get_or_create(run=run, attempt=attempt, split=split, step_kind=step_kind, step=step)
        return self.select_for_update(no_key=True).get(pk=row.pk)


class Step(models.Model):
    """One step of one attempt and split. Its statistics are always recomputed from its visible samples.

    Score, group and correctness statistics count each trajectory once, by its last sample. `samples` counts every row.
    If samples were dropped, the statistics remain those of all samples, see `rollouts/retention`.
    `truncated` is None if the run does not record it. `histogram` is {"edges": [...], "counts": [...]}.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="steps")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="steps")
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES)
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    superseded = models.BooleanField(default=False)
    samples = models.PositiveIntegerField(default=0)
    trajectories = models.PositiveIntegerField(default=0)
    generated = models.PositiveIntegerField(null=True, blank=True, help_text="as reported by the trainer")
    guidance = models.JSONField(null=True, blank=True, help_text="what guidance rules did, as reported by the trainer")
    groups = models.PositiveIntegerField(default=0)
    score_mean = models.FloatField(null=True, blank=True)
    score_min = models.FloatField(null=True, blank=True)
    score_max = models.FloatField(null=True, blank=True)
    score_std = models.FloatField(null=True, blank=True)
    score_p10 = models.FloatField(null=True, blank=True)
    score_p50 = models.FloatField(null=True, blank=True)
    score_p90 = models.FloatField(null=True, blank=True)
    length_mean = models.FloatField(null=True, blank=True, help_text="of the response, in characters")
    truncated = models.PositiveIntegerField(null=True, blank=True)
    staleness_mean = models.FloatField(null=True, blank=True, help_text="of the samples with a known staleness")
    staleness_max = models.IntegerField(null=True, blank=True)
    zero_variance_groups = models.PositiveIntegerField(default=0)
    facets = models.JSONField(default=dict, blank=True, help_text="{facet: count}")
    histogram = models.JSONField(default=dict, blank=True)
    by_source = models.JSONField(default=dict, blank=True, help_text="{data source: {count, score_mean}}")
    parts = models.JSONField(default=dict, blank=True, help_text="{reward part: {mean, is_score}}")
    rescores = models.JSONField(null=True, blank=True, help_text="{key of a re-score: mean}")
    ranges = models.JSONField(null=True, blank=True, help_text="{ordering: [lowest, highest]}, null if unknown")
    flags = models.PositiveIntegerField(default=0)
    rule = models.PositiveIntegerField(default=0, help_text="number of the correctness rule that was applied")
    properties = models.PositiveSmallIntegerField(
        null=True, blank=True, db_index=True, help_text="version of the text properties, null before 1"
    )
    dropped = models.PositiveIntegerField(default=0, help_text="samples that the retention policy dropped")
    dropped_bytes = models.PositiveBigIntegerField(default=0, help_text="what that freed, estimated")
    dropped_at = models.DateTimeField(null=True, blank=True)
    dropped_rule = models.CharField(max_length=10, blank=True, default="", help_text="why, see RetentionPolicy")
    version = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar = StepQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt", "split", "step_kind", "step"], name="one_row_per_step")
        ]
        indexes = [models.Index(fields=["run", "split", "step", "superseded"], name="step_by_run")]

    def __str__(self) -> str:
        return f"{self.split} step {self.step} of {self.run_id}"


def format_template_id(key: int) -> str:
    """Returns the id of a template as the query language writes it."""
    return f"{key:010x}"


def parse_template_id(text: str) -> int:
    """Returns the key of a template. Raises ValueError."""
    if len(text) != 10 or not text.isalnum():
        raise ValueError(text)
    return int(text, 16)


class StepTemplate(models.Model):
    """An opening or ending that many responses of a step share, see `rollouts/samples/responses/templates.py`."""

    step = models.ForeignKey(Step, models.CASCADE, related_name="templates", db_index=False)
    key = models.BigIntegerField(help_text="the same in every step")
    kind = models.CharField(max_length=7, help_text="opening or ending")
    text = models.CharField(max_length=400, help_text="masked")
    samples = models.PositiveIntegerField()
    groups = models.PositiveIntegerField()
    score_mean = models.FloatField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["step", "key"], name="one_template_per_step")]
        indexes = [models.Index(fields=["key", "step"], name="template_by_key")]

    def __str__(self) -> str:
        return f"{self.kind} {self.template_id} of step {self.step_id}"

    @property
    def template_id(self) -> str:
        return format_template_id(self.key)
