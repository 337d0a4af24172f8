"""Artifacts: files of a step that a trainer can load instead of generating, and their stored bytes."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from rolloutdeck.protocol import ARTIFACT_ROLES
from rollouts.lib import has_passed
from rollouts.models.projects import Project
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLIT_CHOICES, STEP_KIND_CHOICES


class Blob(models.Model):
    """The verified, uncompressed bytes of an artifact's file, stored by sha256. Projects do not share blobs."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="blobs")
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    readable = models.BooleanField(null=True, blank=True, help_text="whether our reader can read it; None: plain data")
    loadable = models.BooleanField(null=True, blank=True, help_text="whether a trainer may load it; None: plain data")
    reasons = models.JSONField(default=list, blank=True, help_text="why not, one sentence per reason")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="one_blob_per_project")]

    def __str__(self) -> str:
        return self.sha256[:12]


class ArtifactQuerySet(models.QuerySet["Artifact"]):
    def pending(self) -> ArtifactQuerySet:
        """Artifacts whose bytes are not complete or not checked yet."""
        return self.filter(state__in=Artifact.PENDING_STATES)

    def due(self) -> ArtifactQuerySet:
        """Complete artifacts that no worker is checking."""
        return self.pending().filter(has_passed("due_at", Artifact.LEASE), missing=0)

    def in_use(self) -> ArtifactQuerySet:
        """Artifacts whose bytes are needed: those that are pinned, or in a plan that an unfinished run is bound to."""
        bound = Q(pins__entries__revision__bindings__run__in=Run.objects.unfinished())
        pinned = Q(pins__isnull=False, pins__removed_at=None)
        return self.filter(pk__in=Artifact.objects.filter(pinned | bound).values("pk"))


class Artifact(models.Model):
    """The files of one step on a trainer's host. The bytes are uploaded when a pin needs them.

    `key` is the sha256 of the canonical manifest, see `rolloutdeck.protocol.manifest`. `files` is {relative path:
    {"sha256", "bytes"}}. `facts` are those of `rolloutdeck.protocol.compatibility`; a missing one is unknown. `origin`
    is {"host", "path", "command"}: where the bytes are and the command that uploads them. `missing` counts files that
    are not stored. If it is 0, a worker checks them: the sweep sends it at `due_at`, and `tries` counts the claims.
    """

    LEASE = timedelta(minutes=2)
    MAX_TRIES = 5

    class State(models.TextChoices):
        WAITING = "waiting"
        UPLOADING = "uploading"
        READY = "ready"
        UNSAFE = "unsafe"
        GONE = "gone"

    PENDING_STATES = (State.WAITING, State.UPLOADING)

    run = models.ForeignKey(Run, models.CASCADE, related_name="artifacts")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="artifacts")
    key = models.CharField(max_length=64)
    role = models.CharField(max_length=20, choices=[(role, role) for role in ARTIFACT_ROLES])
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES, default="train")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField()
    files = models.JSONField(default=dict)
    blobs = models.ManyToManyField(Blob, related_name="artifacts")
    bytes = models.PositiveBigIntegerField(default=0)
    facts = models.JSONField(default=dict, blank=True)
    origin = models.JSONField(default=dict, blank=True)
    send_now = models.BooleanField(default=False, help_text="the sender does not wait for a pin")
    state = models.CharField(max_length=9, choices=State.choices, default=State.WAITING)
    message = models.TextField(blank=True, default="", help_text="why it is unsafe or gone")
    missing = models.PositiveIntegerField(default=0)
    tries = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    forgotten_at = models.DateTimeField(null=True, blank=True, help_text="its files had a prompt that was forgotten")

    objects: ClassVar = ArtifactQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="one_artifact_per_manifest")]
        indexes = [
            models.Index(fields=["run", "role", "step_kind", "step"], name="artifact_by_step"),
            models.Index(fields=["state", "due_at"], name="artifact_by_state"),
        ]

    def __str__(self) -> str:
        return f"{self.role} of step {self.step} of {self.run_id}"

    @property
    def pending(self) -> bool:
        return self.state in self.PENDING_STATES

    @property
    def due(self) -> bool:
        """Whether all bytes are stored and not checked yet."""
        return self.pending and not self.missing

    def claim(self) -> bool:
        """Returns True for exactly one caller, who must check it within `LEASE`."""
        free = Artifact.objects.due().filter(pk=self.pk)
        return bool(free.update(due_at=timezone.now() + self.LEASE, tries=models.F("tries") + 1))

    def renew(self) -> None:
        """Gives the worker that checks it another `LEASE`."""
        Artifact.objects.filter(pk=self.pk).update(due_at=timezone.now() + self.LEASE)
