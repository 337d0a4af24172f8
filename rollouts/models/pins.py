"""Pins, replay plans, the binding of runs to plans, the outcome of each replay, and the prompts of a dry run."""

from __future__ import annotations

from typing import ClassVar

from django.conf import settings
from django.db import models

from rolloutdeck.protocol import MISMATCH_ACTIONS, PLAN_ACTIONS, REPLAY_OUTCOMES, SELECTED_ACTIONS, SELECTION_SOURCES
from rollouts.models.artifacts import Artifact
from rollouts.models.projects import Project
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLIT_CHOICES, STEP_KIND_CHOICES


class Pin(models.Model):
    """Stores the artifacts that a step can be replayed from. Fully async runs have an artifact per prompt, so a pin may
    have many; `prompts` counts the prompts of the step. A removed pin is not deleted: plans refer to it, and the step
    may have another pin."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="pins")
    run = models.ForeignKey(Run, models.CASCADE, related_name="pins")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="pins")
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES, default="train")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    artifacts = models.ManyToManyField(Artifact, related_name="pins")
    prompts = models.PositiveIntegerField(null=True, blank=True)
    note = models.TextField(blank=True, default="")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="pins")
    created_at = models.DateTimeField(auto_now_add=True)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["run", "attempt", "split", "step_kind", "step"],
                condition=models.Q(removed_at=None),
                name="one_pin_per_step",
            )
        ]

    def __str__(self) -> str:
        return f"step {self.step} of {self.run_id}"

    def current_plans(self) -> list[str]:
        """Returns the names of the plans whose newest revision replays this pin."""
        newest = Revision.objects.newest().filter(entries__pin=self)
        return sorted(set(newest.values_list("plan__name", flat=True)))


class ReplayPlan(models.Model):
    """The name of a plan in a project. The content is in its revisions."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="plans")
    name = models.CharField(max_length=80)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_plan_per_name")]

    def __str__(self) -> str:
        return self.name


class RevisionQuerySet(models.QuerySet["Revision"]):
    def newest(self) -> RevisionQuerySet:
        """The newest revision of each plan."""
        return self.filter(pk__in=Revision.objects.values("plan").annotate(last=models.Max("pk")).values("last"))


class Revision(models.Model):
    """A saved state of a plan, immutable. Number 0 does not exist: the API returns it for an empty plan.

    `on_selected` is what a replay does with the samples that `selected_by` selects: those flagged bad, or those of the
    guidance rules.
    """

    plan = models.ForeignKey(ReplayPlan, models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    action = models.CharField(max_length=11, choices=[(action, action) for action in PLAN_ACTIONS], default="cache")
    on_mismatch = models.CharField(max_length=8, choices=[(key, key) for key in MISMATCH_ACTIONS], default="generate")
    on_selected = models.CharField(max_length=10, choices=[(key, key) for key in SELECTED_ACTIONS], default="keep")
    selected_by = models.CharField(max_length=5, choices=[(key, key) for key in SELECTION_SOURCES], default="flags")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="revisions")
    created_at = models.DateTimeField(auto_now_add=True)

    objects: ClassVar = RevisionQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["plan", "number"], name="one_revision_per_number")]

    def __str__(self) -> str:
        return f"{self.plan}@{self.number}"


class Entry(models.Model):
    """A pin and the step at which a run of the plan replays it."""

    revision = models.ForeignKey(Revision, models.CASCADE, related_name="entries")
    pin = models.ForeignKey(Pin, models.PROTECT, related_name="entries")
    target_step = models.PositiveBigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["revision", "target_step"], name="one_pin_per_target")]
        verbose_name_plural = "entries"

    def __str__(self) -> str:
        return f"{self.pin_id} at step {self.target_step}"


class Binding(models.Model):
    """Which revision a run replays: set by `pull` or when the run starts, and fixed for all attempts once it has begun.

    `revision` is None if there was no plan: the run generates all its steps, even if a plan is saved later.
    """

    run = models.OneToOneField(Run, models.CASCADE, related_name="binding")
    revision = models.ForeignKey(Revision, models.PROTECT, related_name="bindings", null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.run_id} replays {self.revision or 'nothing'}"


class Replay(models.Model):
    """What happened at a step of a bound run: `hit` (replayed), `miss` (generated), `refused` (`reason` says why).

    `seconds` is the time of loading, `saved` the time of generating the source step if it was logged. `selected_action`
    is what was done with the samples that the plan selects, `selected` the number of masked samples or dropped prompts,
    and `guidance_version` the version of the rules that selected them.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="replays")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="replays")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    outcome = models.CharField(max_length=7, choices=[(outcome, outcome) for outcome in REPLAY_OUTCOMES])
    pin = models.ForeignKey(Pin, models.SET_NULL, related_name="replays", null=True, blank=True)
    rows = models.PositiveIntegerField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)
    saved = models.FloatField(null=True, blank=True)
    reason = models.TextField(blank=True, default="")
    selected_action = models.CharField(max_length=10, blank=True, default="")
    selected = models.PositiveIntegerField(null=True, blank=True)
    guidance_version = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "attempt", "step_kind", "step"], name="one_replay_per_step")
        ]

    def __str__(self) -> str:
        return f"{self.outcome} at step {self.step} of {self.run_id}"


class StepPrompts(models.Model):
    """The prompts that a step of a run will ask for, sent by a dry run of its data loader: hashes of the prompt keys,
    in their order and sorted. `prompts` counts different prompts."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="step_prompts")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    ordered = models.CharField(max_length=32)
    unordered = models.CharField(max_length=32)
    prompts = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "step_kind", "step"], name="one_prompt_list_per_step")]

    def __str__(self) -> str:
        return f"prompts of step {self.step} of {self.run_id}"
