"""Files of a step that a trainer can load again instead of generating, and the bytes of them that are here."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from rolloutdeck.protocol import ARTIFACT_ROLES
from rollouts.models.projects import Project
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLIT_CHOICES, STEP_KIND_CHOICES


class Blob(models.Model):
    """Verified bytes of a file of an artifact, kept plain under their sha256, per project and never shared across."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="blobs")
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    readable = models.BooleanField(null=True, blank=True, help_text="our reader can take values from it; None: data")
    loadable = models.BooleanField(null=True, blank=True, help_text="a trainer may be given it; None: plain data")
    reasons = models.JSONField(default=list, blank=True, help_text="why not, a sentence each")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "sha256"], name="one_blob_per_project")]

    def __str__(self) -> str:
        return self.sha256[:12]


class ArtifactQuerySet(models.QuerySet["Artifact"]):
    def pending(self) -> ArtifactQuerySet:
        """Those whose bytes may still come, or have come and are not checked yet."""
        return self.filter(state__in=(Artifact.State.WAITING, Artifact.State.UPLOADING))

    def due(self) -> ArtifactQuerySet:
        """Those that a worker should check now: all bytes are here, and nobody is at it."""
        return self.pending().filter(missing=0, due_at__lte=timezone.now())

    def held(self) -> ArtifactQuerySet:
        """Those whose bytes are to be kept and fetched: pinned, or planned for a run that is bound and not ended."""
        bound = Q(pins__entries__revision__bindings__run__in=Run.objects.going_on())
        pinned = Q(pins__isnull=False, pins__removed_at=None)
        return self.filter(pk__in=Artifact.objects.filter(pinned | bound).values("pk"))


class Artifact(models.Model):
    """A manifest of files of one step, told by a trainer's node; the bytes come when a pin wants them.

    `key` is the sha256 of the canonical manifest, see `rolloutdeck.protocol.manifest`. `files` is {relative path:
    {"sha256", "bytes"}}. `facts` are those of `rolloutdeck.protocol.compatibility`; a missing one is unknown. `origin`
    is {"host", "path", "command"}: where the bytes lie and what would send them. `missing` counts the files that are
    not here; without any a worker checks what is here: `due_at` says when the sweep should send it, `tries` how often
    it was sent.
    """

    LEASE = timedelta(minutes=2)
    MAX_TRIES = 5

    class State(models.TextChoices):
        WAITING = "waiting"
        UPLOADING = "uploading"
        READY = "ready"
        UNSAFE = "unsafe"
        GONE = "gone"

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
        return self.state in (self.State.WAITING, self.State.UPLOADING)

    @property
    def due(self) -> bool:
        """Whether a worker should check it; see `ArtifactQuerySet.due`."""
        return self.pending and not self.missing

    def claim(self) -> bool:
        """Compare-and-set: True for exactly one caller, who then has `LEASE` to check it."""
        free = Artifact.objects.due().filter(pk=self.pk)
        return bool(free.update(due_at=timezone.now() + self.LEASE, tries=models.F("tries") + 1))
