"""Runs and their attempts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from rollouts.models.projects import Project

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User


class RunQuerySet(models.QuerySet["Run"]):
    def visible_to(self, user: User | AnonymousUser) -> RunQuerySet:
        """The only rule for read access: runs of the user's projects that are not in the trash."""
        return self.filter(project__in=Project.objects.visible_to(user), deleted_at=None)

    def unfinished(self) -> RunQuerySet:
        """Runs that have not reported their end and are not in the trash."""
        return self.filter(outcome="", deleted_at=None)

    def with_samples(self) -> RunQuerySet:
        """Returns the runs that have a step with samples."""
        return self.filter(pk__in=Run.objects.filter(steps__samples__gt=0).values("pk"))

    def by_uid(self, uid: str) -> Run | None:
        """Returns the run with this uid or alias."""
        return self.filter(Q(uid=uid) | Q(aliases__uid=uid)).first()


COLOUR_COUNT = 8
SILENT_AFTER = timedelta(minutes=3)  # a run that was updated since is not silent, even if its steps are short
SILENT_AFTER_STEPS = 3
MAX_TIMED_STEPS = 21  # newest training steps, whose arrival times give the duration of a step


def compute_median_gap(arrivals: Iterable[datetime]) -> timedelta:
    gaps = sorted(late - early for early, late in pairwise(sorted(arrivals)))
    return gaps[len(gaps) // 2] if gaps else timedelta(0)


class Run(models.Model):
    """One training run. The client creates the `uid`, so it can spool data before it reaches a server."""

    class Outcome(models.TextChoices):
        OPEN = "", "open"
        FINISHED = "finished"
        FAILED = "failed"

    uid = models.CharField(max_length=64, unique=True)
    project = models.ForeignKey(Project, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=200)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    framework = models.CharField(max_length=40, blank=True, default="")
    config = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=list, blank=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, default="")
    phase = models.CharField(max_length=40, blank=True, default="")
    dropped = models.JSONField(default=dict, blank=True, help_text="lost by clients, {spool: {reason: count}}")
    pollers = models.JSONField(default=dict, blank=True, help_text="{host: last poll, ISO 8601}")
    facts = models.JSONField(default=dict, blank=True, help_text="see rolloutdeck.protocol.compatibility")
    version = models.PositiveBigIntegerField(default=0, help_text="increases with every visible change")
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now, help_text="last update of any kind")
    finished_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True, help_text="hidden from the default list, complete")
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar = RunQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="one_run_per_name")]

    def __str__(self) -> str:
        return f"{self.project.slug}/{self.name}"

    @property
    def status(self) -> str:
        """`planned` (created before its first attempt), `running`, `silent` (no update for three median steps and three
        minutes), `finished` or `failed`."""
        if self.outcome:
            return self.outcome
        if not self.attempts.exists():
            return "planned"
        elapsed = timezone.now() - self.seen_at
        is_silent = elapsed > SILENT_AFTER and elapsed > SILENT_AFTER_STEPS * self.median_step_interval()
        return "silent" if is_silent else "running"

    @property
    def image_owner(self) -> str:
        """The name under which `rollouts/storage` stores the run's images."""
        return f"run-{self.pk}"

    @property
    def colour(self) -> int:
        """The number of the run's colour, 1 to 8. It never changes, and runs created one after the other differ."""
        return (self.pk - 1) % COLOUR_COUNT + 1

    def median_step_interval(self) -> timedelta:
        """Returns the median time between the arrivals of the last twenty training steps."""
        newest = self.steps.filter(split="train").order_by("-step").values_list("created_at", flat=True)
        return compute_median_gap(newest[:MAX_TIMED_STEPS])


class RunAlias(models.Model):
    """Another uid of a run. A client that was offline created it for a name that continues an existing run."""

    uid = models.CharField(max_length=64, unique=True)
    run = models.ForeignKey(Run, models.CASCADE, related_name="aliases")

    def __str__(self) -> str:
        return self.uid


class AttemptQuerySet(models.QuerySet["Attempt"]):
    def restarts(self) -> AttemptQuerySet:
        """Attempts that started the training again: none that joined an earlier one while it ran."""
        return self.filter(Q(concurrent_with=None) | Q(concurrent_with=F("pk")), number__gt=1)


class Attempt(models.Model):
    """One start of the training. A later attempt supersedes earlier ones from its own first step on."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    key = models.CharField(max_length=120)
    number = models.PositiveIntegerField(help_text="1, 2, … in order of arrival")
    host = models.CharField(max_length=120, blank=True, default="")
    job = models.CharField(max_length=120, blank=True, default="")
    config_changes = models.JSONField(default=dict, blank=True, help_text="{key: [before, now]} since the last attempt")
    concurrent_with = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+", help_text="first of those that run together"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(default=timezone.now, help_text="when its data last arrived")
    alive_at = models.DateTimeField(default=timezone.now, help_text="its start or last heartbeat")
    ended_at = models.DateTimeField(null=True, blank=True, help_text="when a process of it ended last")

    objects: ClassVar = AttemptQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "key"], name="one_attempt_per_key"),
            models.UniqueConstraint(fields=["run", "number"], name="one_attempt_per_number"),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.run_id}"


class AttemptContext(models.Model):
    """What the processes of an attempt ran, as they reported it: command, code version, versions, hosts.

    `facts` are listed in `rollouts/ingest/contexts.py`. It is a table of its own, since the patch may be large.
    """

    attempt = models.OneToOneField(Attempt, models.CASCADE, related_name="context")
    facts = models.JSONField(default=dict)
    patch = models.TextField(blank=True, default="", help_text="uncommitted changes of the code")
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"context of {self.attempt_id}"


class RunDiskUsage(models.Model):
    """The bytes that a run takes on disk, by kind, as the sweep measured them last.

    `raw`: compressed dumps. `bodies`: sample bodies. `artifacts`: files that a trainer can load. `images`: those of its
    samples. `metrics`: packed points. `index`: rows of the database, estimated by their number.
    """

    KINDS = ("raw", "bodies", "artifacts", "images", "metrics", "index")

    run = models.OneToOneField(Run, models.CASCADE, related_name="disk_usage")
    raw = models.PositiveBigIntegerField(default=0)
    bodies = models.PositiveBigIntegerField(default=0)
    artifacts = models.PositiveBigIntegerField(default=0)
    images = models.PositiveBigIntegerField(default=0)
    metrics = models.PositiveBigIntegerField(default=0)
    index = models.PositiveBigIntegerField(default=0)
    version = models.PositiveBigIntegerField(default=0, help_text="of the run when it was measured")
    measured_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"disk usage of {self.run_id}"

    @property
    def total(self) -> int:
        return sum(int(getattr(self, kind)) for kind in self.KINDS)


class LaunchProcess(models.Model):
    """A process whose attempt key is its own, and the attempt that it shares with the other processes of its launch.

    The fields from `launch` to `starter` are the parts of the key, see `LAUNCH_KEY_PATTERN`.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="+")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="processes")
    key = models.CharField(max_length=120)
    name = models.CharField(max_length=200, blank=True, default="", help_text='requested name of the run, "" for none')
    launch = models.CharField(max_length=20, db_index=True)
    rank = models.PositiveIntegerField()
    starter = models.CharField(max_length=8)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="one_process_per_key")]

    def __str__(self) -> str:
        return self.key
