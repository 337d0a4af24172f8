"""Samples, and what users record about them: flags, flag actions, viewed samples."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from rollouts.models.dumps import Dump
from rollouts.models.runs import Run
from rollouts.models.steps import Step


class SampleQuerySet(models.QuerySet["Sample"]):
    def visible(self) -> SampleQuerySet:
        """Excludes samples that only superseded dumps contain."""
        return self.filter(visible=True)

    def in_current_steps(self) -> SampleQuerySet:
        """Samples in steps that no later attempt has superseded."""
        return self.filter(step__superseded=False)

    def current_and_visible(self) -> SampleQuerySet:
        return self.visible().in_current_steps()


class Sample(models.Model):
    """The index row of a sample: what lists sort, filter and preview. The sample body is row `ordinal` of its dump's
    rows in the segment.

    `id` is a hash, see `rollouts/samples/identity.py`. `truncated` is None if unknown; the text property `trunc?` means
    that it was inferred. `chars` and `tokens` are lengths of the response.
    """

    id = models.CharField(max_length=52, primary_key=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="rows", db_index=False)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="samples")
    ordinal = models.PositiveIntegerField()
    visible = models.BooleanField(default=True)
    final = models.BooleanField(default=True, help_text="the last sample of its trajectory")
    group = models.CharField(max_length=64, blank=True, default="")
    index = models.IntegerField(null=True, blank=True, help_text="n within the group")
    trajectory = models.CharField(max_length=80, blank=True, default="")
    prompt_key = models.CharField(max_length=26)
    score = models.FloatField(null=True, blank=True)
    correct = models.BooleanField(null=True, blank=True)
    advantage = models.FloatField(null=True, blank=True, help_text="mean over the response's tokens")
    chars = models.PositiveIntegerField(default=0)
    tokens = models.PositiveIntegerField(null=True, blank=True)
    truncated = models.BooleanField(null=True, blank=True)
    staleness = models.IntegerField(null=True, blank=True, help_text="version of the trainer minus that of the sample")
    duration = models.FloatField(null=True, blank=True, help_text="seconds of the sample, see timing.py")
    facets = models.PositiveIntegerField(default=0, help_text="bits, see text_properties.py")
    data_source = models.CharField(max_length=120, blank=True, default="")
    expected = models.CharField(max_length=80, blank=True, default="", help_text="start of the ground truth")
    answer = models.CharField(  # noqa: DJ001  null: indexed by an older version
        max_length=80, null=True, blank=True, help_text="last answer in the text, null if unknown"
    )
    tail = models.CharField(max_length=200, blank=True, default="", help_text="end of the response, one line")
    parts = models.JSONField(null=True, blank=True, help_text="{reward part: number}, null if there are none")
    opening = models.BigIntegerField(null=True, blank=True, help_text="key of its template, see templates.py")
    ending = models.BigIntegerField(null=True, blank=True, help_text="key of its template, see templates.py")

    objects: ClassVar = SampleQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["step", "score"], name="sample_by_score"),
            models.Index(fields=["prompt_key", "step"], name="sample_by_prompt"),
        ]

    def __str__(self) -> str:
        return self.id


class DuplicateSource(models.Model):
    """A sample that another dump contains too, such as a file and a plug-in. It counts once, with merged fields."""

    sample = models.CharField(max_length=52, db_index=True)
    dump = models.ForeignKey(Dump, models.CASCADE, related_name="sightings")
    ordinal = models.PositiveIntegerField()

    class Meta:
        db_table = "rollouts_sighting"
        constraints = [models.UniqueConstraint(fields=["dump", "sample"], name="one_sighting_per_dump")]

    def __str__(self) -> str:
        return f"{self.sample} in {self.dump_id}"


class FlagQuerySet(models.QuerySet["Flag"]):
    def count_flagged_samples(self, step: Step) -> int:
        """Returns the number of visible samples of the step that are flagged."""
        visible = Sample.objects.visible().filter(step=step).values("pk")
        active = self.filter(step=step, withdrawn_at=None, sample__in=visible)
        return active.values("sample").distinct().count()

    def recount(self, step: Step) -> None:
        """Updates `Step.flags`. The caller holds the step's row lock."""
        Step.objects.filter(pk=step.pk).update(flags=self.count_flagged_samples(step))


class Flag(models.Model):
    """A user's mark on a sample. A withdrawn flag is not deleted. It has the sample's id to survive a re-index."""

    class Label(models.TextChoices):
        BAD = "bad"
        GOOD = "good"
        UNSURE = "unsure"

    sample = models.CharField(max_length=52, db_index=True)
    step = models.ForeignKey(Step, models.CASCADE, related_name="flagged")
    run = models.ForeignKey(Run, models.CASCADE, related_name="flags")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="flags")
    label = models.CharField(max_length=6, choices=Label.choices, default=Label.BAD)
    reason = models.CharField(max_length=40, blank=True, default="")
    text = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = FlagQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sample", "user", "reason"], name="one_flag_per_reason")]

    def __str__(self) -> str:
        return f"{self.label} {self.reason} by {self.user}"


class BulkFlagAction(models.Model):
    """An action of one user on the flags of one or more samples of a run, which can be undone.

    `before` is {"was": [[flag id, its `updated_at` after the action, its state before the action,
    its `updated_at` then; both null for a new flag]], "left": the state of all flags after the action}. A state is
    [label, text, withdrawn].
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="markings")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="markings")
    description = models.CharField(max_length=200, db_column="said")
    before = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)
    undone_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "rollouts_marking"
        indexes = [models.Index(fields=["run", "user", "-created_at"], name="marking_by_news")]

    def __str__(self) -> str:
        return f"{self.description} by {self.user}"


class ViewedSample(models.Model):
    """A user has viewed a sample, or marked it as OK (`fine`). It refers to the sample's id, so it survives a re-index.

    A row never changes: another decision is a new row that replaces the old one. So the number of a user's rows in a
    run and the newest id identify the user's state.
    """

    sample = models.CharField(max_length=52)
    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    fine = models.BooleanField(default=False)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "rollouts_seen"
        constraints = [models.UniqueConstraint(fields=["user", "run", "sample"], name="one_look_per_person")]

    def __str__(self) -> str:
        return f"{self.sample} by {self.user_id}"
