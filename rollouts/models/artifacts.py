"""Files of a step that a trainer can load again instead of generating, and the bytes of them that are here."""

from __future__ import annotations

from django.db import models

from rolloutdeck import wire
from rollouts.models.projects import Project
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLITS, STEP_KINDS


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


class Artifact(models.Model):
    """A manifest of files of one step, told by a trainer's node; the bytes come when a pin wants them.

    `key` is the sha256 of the canonical manifest, see `rolloutdeck.manifest`. `files` is {relative path: {"sha256",
    "bytes"}}. `facts` are those of `rolloutdeck.compat`; a missing one is unknown. `origin` is {"host", "path",
    "command"}: where the bytes lie and what would send them.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        UPLOADING = "uploading"
        READY = "ready"
        UNSAFE = "unsafe"
        GONE = "gone"

    run = models.ForeignKey(Run, models.CASCADE, related_name="artifacts")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="artifacts")
    key = models.CharField(max_length=64)
    role = models.CharField(max_length=20, choices=[(role, role) for role in wire.ROLES])
    split = models.CharField(max_length=5, choices=SPLITS, default="train")
    step_kind = models.CharField(max_length=14, choices=STEP_KINDS, default="global_step")
    step = models.BigIntegerField()
    files = models.JSONField(default=dict)
    bytes = models.PositiveBigIntegerField(default=0)
    facts = models.JSONField(default=dict, blank=True)
    origin = models.JSONField(default=dict, blank=True)
    send_now = models.BooleanField(default=False, help_text="the sender does not wait for a pin")
    state = models.CharField(max_length=9, choices=State.choices, default=State.WAITING)
    message = models.TextField(blank=True, default="", help_text="why it is unsafe or gone")
    created_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "key"], name="one_artifact_per_manifest")]
        indexes = [models.Index(fields=["run", "role", "step_kind", "step"], name="artifact_by_step")]

    def __str__(self) -> str:
        return f"{self.role} of step {self.step} of {self.run_id}"
