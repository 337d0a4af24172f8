"""Dumps: bytes that arrived, and the body files with the samples read from them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.db import models
from django.db.models import Case, F, Q, When
from django.utils import timezone

from rollouts.lib import get_current_process_id, has_passed
from rollouts.models.runs import Attempt, Run
from rollouts.models.steps import SPLIT_CHOICES, STEP_KIND_CHOICES


class Segment(models.Model):
    """A Parquet file of sample bodies: of one dump, or of many small dumps of a run and split, compacted."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="segments")
    split = models.CharField(max_length=5, choices=SPLIT_CHOICES)
    path = models.CharField(max_length=200, unique=True, help_text="below the data directory's bodies/")
    rows = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    schema = models.PositiveSmallIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.path


def is_claim_over() -> Q:
    """The worker has not renewed its claim in time, or the clock was ahead when it did."""
    now = timezone.now()
    is_over = Q(claimed_at__lte=now - Dump.LEASE) | Q(claimed_at__gt=now + Dump.LEASE)
    return Q(state=Dump.State.INDEXING) & is_over


class DumpQuerySet(models.QuerySet["Dump"]):
    def overdue(self) -> DumpQuerySet:
        """Dumps whose message was lost, or whose worker died and its lease ended."""
        received = Q(state=Dump.State.RECEIVED) & has_passed("due_at", Dump.MAX_DELAY)
        return self.filter(received | is_claim_over())

    def requeue(self, due_at: datetime, **changes: Any) -> int:
        """Returns the number of dumps. A claimed dump keeps its tries, or its worker would use the next claim."""
        tries = Case(When(state=Dump.State.INDEXING, then=F("tries")), default=0)
        return self.update(state=Dump.State.RECEIVED, tries=tries, message="", due_at=due_at, **changes)


class Dump(models.Model):
    """Bytes that arrived, and how far they are processed. The rows are the queue; a message only speeds it up.

    `step` is None for files that contain their own steps (metrics). `source` is the producer and the relative path, or
    a uuid per call. `producer` is empty unless several processes generate for the same step.
    """

    class State(models.TextChoices):
        RECEIVED = "received"
        INDEXING = "indexing"
        INDEXED = "indexed"
        FAILED = "failed"
        UNSAFE = "unsafe"
        SUPERSEDED = "superseded"

    LEASE = timedelta(minutes=2)
    MAX_DELAY = timedelta(minutes=5)  # `due_at` is never further ahead
    MAX_TRIES = 5
    ARTIFACT_PREFIX = "artifact:"  # the source of a dump that was created from an artifact starts with it

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
    format = models.CharField(max_length=40, blank=True, default="", help_text="as uploaded, else detected by indexing")
    columns = models.CharField(max_length=1000, blank=True, default="", help_text="of a table, uploaded: part=column,…")
    offset = models.PositiveBigIntegerField(null=True, blank=True, help_text="of a chunk of an append file, in bytes")
    generation = models.PositiveIntegerField(default=0, help_text="increases when an append file starts again")
    state = models.CharField(max_length=10, choices=State.choices, default=State.RECEIVED)
    message = models.TextField(blank=True, default="", help_text="what the page shows of a failure")
    tries = models.PositiveSmallIntegerField(default=0)
    claimed_at = models.DateTimeField(null=True, blank=True)
    claimed_by = models.CharField(max_length=120, blank=True, default="", help_text="process id, see process_id.py")
    due_at = models.DateTimeField(default=timezone.now, help_text="when the sweep should send it again")
    received_at = models.DateTimeField(auto_now_add=True)
    indexed_at = models.DateTimeField(null=True, blank=True)
    rows = models.PositiveIntegerField(default=0)
    left_out = models.JSONField(default=dict, blank=True, help_text="{reason: count}, padding rows and bad lines")
    rejected = models.PositiveIntegerField(default=0, help_text="rows that could not be used, the bad lines")
    problems = models.JSONField(default=list, blank=True, help_text="[[line, reason], …], the first twenty")
    segment = models.ForeignKey(Segment, models.SET_NULL, related_name="dumps", null=True, blank=True)
    segment_offset = models.PositiveIntegerField(default=0, help_text="this dump's first row in its segment")
    samples_dropped_at = models.DateTimeField(null=True, blank=True, help_text="by the retention policy")
    raw_dropped_at = models.DateTimeField(null=True, blank=True, help_text="when the raw bytes were dropped")
    raw_kept_at = models.DateTimeField(
        null=True, blank=True, help_text="when the body did not reproduce the raw bytes, so both are kept"
    )
    raw_dropped_bytes = models.PositiveBigIntegerField(default=0, help_text="compressed bytes that this freed")

    objects: ClassVar = DumpQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["identity"], name="one_dump_per_identity")]
        indexes = [
            models.Index(fields=["run", "attempt", "split", "step_kind", "step", "source"], name="dump_by_source"),
            models.Index(fields=["state", "due_at"], name="dump_by_state"),
            models.Index(fields=["run", "state"], name="dump_by_run"),
            models.Index(fields=["run"], condition=Q(rejected__gt=0), name="dump_with_rejected_rows"),
        ]

    def __str__(self) -> str:
        return f"{self.source} ({self.state})"

    @property
    def is_from_artifact(self) -> bool:
        return self.source.startswith(self.ARTIFACT_PREFIX)

    @property
    def is_final(self) -> bool:
        """Whether raw bytes or samples of it were dropped or forgotten, so that it cannot be indexed again."""
        return self.raw_dropped_at is not None or self.samples_dropped_at is not None

    @property
    def will_be_indexed(self) -> bool:
        """Whether its body will be made again: it waits for a worker, or one works on it."""
        return self.state in (self.State.RECEIVED, self.State.INDEXING) and not self.is_final

    def claim(self) -> bool:
        """Returns True for exactly one caller, who must finish or `renew` within `LEASE`."""
        free = Q(state=self.State.RECEIVED) | is_claim_over()
        won = Dump.objects.filter(free, pk=self.pk).update(
            state=self.State.INDEXING,
            claimed_at=timezone.now(),
            claimed_by=get_current_process_id(),
            tries=F("tries") + 1,
        )
        if won:
            self.refresh_from_db()
        return bool(won)

    def renew(self) -> bool:
        """Starts this process's lease again. Returns False if another worker has claimed the dump."""
        mine = Dump.objects.filter(pk=self.pk, state=self.State.INDEXING, claimed_by=get_current_process_id())
        return bool(mine.update(claimed_at=timezone.now()))
