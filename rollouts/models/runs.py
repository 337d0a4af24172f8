"""Runs and their launches."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from rollouts.models.projects import Project

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: User | AnonymousUser) -> RunQuerySet:
        """The one permission sentence: runs of the user's projects that are not in the bin."""
        return self.filter(project__in=Project.objects.visible_to(user), deleted_at=None)

    def going_on(self) -> RunQuerySet:
        """Runs that have not ended, as far as anybody has said, and are not in the bin."""
        return self.filter(outcome="", deleted_at=None)

    def by_uid(self, uid: str) -> Run | None:
        """The run with this uid, or the one that an offline client's uid was joined to."""
        return self.filter(Q(uid=uid) | Q(aliases__uid=uid)).first()


COLOUR_COUNT = 8
SILENT_AFTER = timedelta(minutes=3)  # a run with news since is not silent, however short its steps are
SILENT_AFTER_STEPS = 3
MAX_TIMED_STEPS = 21  # the newest training steps, of which the arrivals tell how long one takes


def compute_median_gap(arrivals: Iterable[datetime]) -> timedelta:
    moments = sorted(arrivals)
    gaps = sorted(late - early for early, late in pairwise(moments))
    return gaps[len(gaps) // 2] if gaps else timedelta(0)


class Run(models.Model):
    """One training run. `uid` is made by the client, so that data can be spooled before any server is seen."""

    class Outcome(models.TextChoices):
        OPEN = "", "open"
        FINISHED = "finished"
        FAILED = "failed"

    uid = models.CharField(max_length=64, unique=True)
    project = models.ForeignKey(Project, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=200)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", help_text="who opened it"
    )
    framework = models.CharField(max_length=40, blank=True, default="")
    config = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=list, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, default="")
    phase = models.CharField(max_length=40, blank=True, default="")
    dropped = models.JSONField(
        default=dict, blank=True, help_text="{spool: {reason: count}} that clients could not keep"
    )
    pollers = models.JSONField(
        default=dict, blank=True, help_text="{host: when it last asked which bytes are wanted, ISO 8601}"
    )
    facts = models.JSONField(
        default=dict,
        blank=True,
        help_text="what it says of itself where it asks for a plan, see rolloutdeck.protocol.compatibility",
    )
    version = models.PositiveBigIntegerField(default=0, help_text="rises with every visible change")
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now, help_text="last news of any kind")
    finished_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True, help_text="out of the way, but whole")
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = RunQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_run_per_name")]

    def __str__(self) -> str:
        return f"{self.project.slug}/{self.name}"

    @property
    def status(self) -> str:
        """`running`, `silent` (no news for three median steps, at least three minutes), `finished` or `failed`."""
        if self.outcome:
            return self.outcome
        quiet = timezone.now() - self.seen_at
        return "silent" if quiet > SILENT_AFTER and quiet > SILENT_AFTER_STEPS * self.median_step() else "running"

    @property
    def colour(self) -> int:
        """1 to 8: which of the run colours is its own, on every page and for as long as it exists. Runs that were made
        one after the other differ."""
        return (self.pk - 1) % COLOUR_COUNT + 1

    def median_step(self) -> timedelta:
        """Median time between the arrivals of the last twenty training steps."""
        newest = self.steps.filter(split="train").order_by("-step").values_list("created_at", flat=True)
        return compute_median_gap(newest[:MAX_TIMED_STEPS])


class RunAlias(models.Model):
    """Another uid of a run: a client that was offline made one, and the name turned out to continue an older run."""

    uid = models.CharField(max_length=64, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="aliases")

    def __str__(self) -> str:
        return self.uid


class Attempt(models.Model):
    """One launch of the training. Later attempts supersede earlier ones from their own first step on."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    key = models.CharField(max_length=120)
    number = models.PositiveIntegerField(help_text="1, 2, … in order of arrival")
    host = models.CharField(max_length=120, blank=True, default="")
    job = models.CharField(max_length=120, blank=True, default="")
    config_changes = models.JSONField(
        default=dict, blank=True, help_text="{key: [before, now]} against the attempt before"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "key"], name="one_attempt_per_key"),
            models.UniqueConstraint(fields=["run", "number"], name="one_attempt_per_number"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.run_id}"
