"""Bytes that arrived, and the bodies made of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from rollouts.lib import get_current_process_id
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLIT_CHOICES, STEP_KIND_CHOICES


class Segment(models.Model):
    """A Parquet file of sample bodies: one dump's, or many small ones of a (run, split) folded together."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="segments")
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES)
    path = models.CharField(max_length=200, unique=True, help_text="below the data directory's bodies/")
    rows = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    schema = models.PositiveSmallIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.path


class DumpQuerySet(models.QuerySet["Dump"]):
    def overdue(self, now: Any = None) -> DumpQuerySet:
        """Dumps whose message was lost, or whose worker died: received long ago, or claimed past the lease."""
        now = now or timezone.now()
        return self.filter(
            Q(state=Dump.State.RECEIVED, due_at__lte=now)
            | Q(state=Dump.State.INDEXING, claimed_at__lte=now - Dump.LEASE)
        )


class Dump(models.Model):
    """Bytes that arrived, and how far they have come. The row is the queue; messages only hurry it along.

    `step` is None for files that carry their own steps (metrics). `source` = producer + relative path, or a uuid per
    call. `producer` is empty unless several processes really generate for the same step.
    """

    class State(models.TextChoices):
        RECEIVED = "received"
        INDEXING = "indexing"
        INDEXED = "indexed"
        FAILED = "failed"
        UNSAFE = "unsafe"
        SUPERSEDED = "superseded"

    LEASE = timedelta(minutes=2)
    MAX_TRIES = 5
    ARTIFACT_PREFIX = "artifact:"  # the source of a dump that was made of an artifact begins with it

    run = models.ForeignKey(Run, models.CASCADE, related_name="dumps")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="dumps")
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES, default="train")
    step_kind = models.CharField(max_length=14, choices=STEP_KIND_CHOICES, default="global_step")
    step = models.BigIntegerField(null=True, blank=True)
    source = models.CharField(max_length=500)
    producer = models.CharField(max_length=80, blank=True, default="")
    sha256 = models.CharField(max_length=64)
    identity = models.CharField(max_length=64, help_text="sha256 over the natural key, which has NULLs in it")
    bytes = models.PositiveBigIntegerField()
    format = models.CharField(max_length=40, blank=True, default="", help_text="as told, else found by indexing")
    columns = models.CharField(max_length=1000, blank=True, default="", help_text="of a table, as told: part=column,…")
    offset = models.PositiveBigIntegerField(null=True, blank=True, help_text="of a chunk of an append file, in bytes")
    generation = models.PositiveIntegerField(default=0, help_text="rises when an append file starts anew")
    state = models.CharField(max_length=10, choices=State.choices, default=State.RECEIVED)
    message = models.TextField(blank=True, default="", help_text="what the page shows of a failure")
    tries = models.PositiveSmallIntegerField(default=0)
    claimed_at = models.DateTimeField(null=True, blank=True)
    claimed_by = models.CharField(max_length=120, blank=True, default="", help_text="process, see processes.py")
    due_at = models.DateTimeField(default=timezone.now, help_text="when the sweep should send it again")
    received_at = models.DateTimeField(auto_now_add=True)
    indexed_at = models.DateTimeField(null=True, blank=True)
    rows = models.PositiveIntegerField(default=0)
    left_out = models.JSONField(default=dict, blank=True, help_text="{reason: count}, padding rows and bad lines")
    problems = models.JSONField(default=list, blank=True, help_text="[[line, reason], …], the first twenty")
    segment = models.ForeignKey(Segment, models.SET_NULL, related_name="dumps", null=True, blank=True)
    segment_offset = models.PositiveIntegerField(default=0, help_text="this dump's first row in its segment")

    objects: ClassVar = DumpQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["identity"], name="one_dump_per_identity")]
        indexes = [
            models.Index(fields=["run", "attempt", "split", "step_kind", "step", "source"], name="dump_by_source"),
            models.Index(fields=["state", "due_at"], name="dump_by_state"),
            models.Index(fields=["run", "state"], name="dump_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.source} ({self.state})"

    def claim(self) -> bool:
        """Compare-and-set: True for exactly one caller, who then has `LEASE` to finish or to `renew`."""
        now = timezone.now()
        free = Q(state=self.State.RECEIVED) | Q(state=self.State.INDEXING, claimed_at__lte=now - self.LEASE)
        won = Dump.objects.filter(free, pk=self.pk).update(
            state=self.State.INDEXING, claimed_at=now, claimed_by=get_current_process_id(), tries=models.F("tries") + 1
        )
        if won:
            self.refresh_from_db()
        return bool(won)

    def renew(self) -> bool:
        """Starts this process's lease anew; False when the claim has been lost to another."""
        mine = Dump.objects.filter(pk=self.pk, state=self.State.INDEXING, claimed_by=get_current_process_id())
        return bool(mine.update(claimed_at=timezone.now()))
