"""Generations, and what people say of them."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from rollouts.models.dumps import Dump
from rollouts.models.runs import Run
from rollouts.models.steps import Step


class SampleQuerySet(models.QuerySet["Sample"]):
    def visible(self) -> SampleQuerySet:
        """Samples of the current version of their dump, in steps that no later attempt has superseded."""
        return self.filter(visible=True, step__superseded=False)


class Sample(models.Model):
    """One generation, slim: what lists sort, filter and preview. The body is in its dump's segment at `ordinal`.

    `id` is base32 of sha256(run uid, attempt, split, step_kind, step, producer, prompt, response, k): `identity.py`.
    `truncated` is None when unknown; the facet `trunc?` says that it was inferred. Lengths: `chars` of the response in
    characters, `tokens` of the response where recorded.
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
    facets = models.PositiveIntegerField(default=0, help_text="bits, see facets.py")
    data_source = models.CharField(max_length=120, blank=True, default="")
    expected = models.CharField(max_length=80, blank=True, default="", help_text="head of the ground truth")
    tail = models.CharField(max_length=200, blank=True, default="", help_text="end of the response, one line")

    objects: ClassVar = SampleQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["step", "score"], name="sample_by_score"),
            models.Index(fields=["prompt_key", "step"], name="sample_by_prompt"),
        ]

    def __str__(self) -> str:
        return self.id


class DuplicateSource(models.Model):
    """The same sample in a second dump (a file and a plug-in both tell of it): its fields join, it counts once."""

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
        """Visible samples of the step with at least one flag that is not withdrawn."""
        visible = Sample.objects.filter(step=step, visible=True).values("pk")
        active = self.filter(step=step, withdrawn_at=None, sample__in=visible)
        return active.values("sample").distinct().count()

    def recount(self, step: Step) -> None:
        """Brings `Step.flags` up to date. The caller holds the step's row lock."""
        Step.objects.filter(pk=step.pk).update(flags=self.count_flagged_samples(step))


class Flag(models.Model):
    """A person's mark on a sample. Withdrawn, never deleted; hangs on the sample's id, so it survives a re-index."""

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
