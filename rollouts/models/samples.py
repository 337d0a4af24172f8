"""Samples, the dumps that repeat them, and who viewed them. `labels.py` has what people say about them."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import connections, models

from rollouts.models.dumps import Dump
from rollouts.models.runs import Run
from rollouts.models.steps import Step, StepQuerySet


class SampleQuerySet(models.QuerySet["Sample"]):
    def visible(self) -> SampleQuerySet:
        """Excludes samples that only superseded dumps contain."""
        return self.filter(visible=True)

    def in_current_steps(self) -> SampleQuerySet:
        """Samples in steps that no later attempt has superseded."""
        return self.filter(step__superseded=False)

    def current_and_visible(self) -> SampleQuerySet:
        return self.visible().in_current_steps()

    def in_steps(self, steps: StepQuerySet) -> SampleQuerySet:
        """Samples in any of these steps. PostgreSQL gets the steps as an array, so that it uses the index: for a long
        run and a subquery, it reads the samples of all runs."""
        keys = steps.order_by().values("pk")
        if connections[self.db].vendor != "postgresql":
            return self.filter(step__in=keys)
        array = models.Subquery(keys, template="ARRAY(%(subquery)s)")
        is_in = models.Func(
            models.F("step"),
            array,
            arg_joiner=" = ANY(",
            template="%(expressions)s)",
            output_field=models.BooleanField(),
        )
        return self.filter(is_in)


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
    rescores = models.JSONField(null=True, blank=True, help_text="{key of a re-score: number}, null if there are none")
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


class ViewedSample(models.Model):
    """A user has viewed a sample. It refers to the sample's id, so it survives a re-index.

    A row never changes, so the number of a user's rows in a run and the newest id identify the user's state.
    """

    sample = models.CharField(max_length=52)
    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", db_index=False)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        db_table = "rollouts_seen"
        constraints = [models.UniqueConstraint(fields=["user", "run", "sample"], name="one_look_per_person")]

    def __str__(self) -> str:
        return f"{self.sample} by {self.user_id}"
