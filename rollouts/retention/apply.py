"""Applies policies in portions of a few seconds. Safe to kill at any time: the next sweep continues.

A pass checks every step once, then the raw bytes, then removes unused rows from body files. The next pass starts an
hour later, and finds what has become older or lost its protection.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from rollouts.errors import RolloutError
from rollouts.lib import has_passed
from rollouts.maintenance import find_body_files_with_unused_rows, measure_run, remove_unused_rows
from rollouts.models import RetentionPolicy, Run
from rollouts.projects import record_audit_entry
from rollouts.retention.drop import StepChangedError, drop_step_samples
from rollouts.retention.limits import find_limits, find_steps
from rollouts.retention.protection import load_protection
from rollouts.retention.raw_dumps import drop_raw_dump, find_due_raw_dumps, has_keep_tag
from rollouts.retention.selection import decide_step
from rollouts.retention.sizes import load_step_sizes

if TYPE_CHECKING:
    from django.contrib.auth.models import User

log = logging.getLogger(__name__)

MAX_SECONDS = 4.0  # of each sweep, so that most of a worker's time remains for new dumps
PASS_INTERVAL = timedelta(hours=1)
LEASE = timedelta(minutes=2)
STEPS_PER_QUERY = 200
MAX_FAILURES = 5  # of raw dumps in a portion, after which its time counts


def find_due_policies() -> QuerySet[RetentionPolicy]:
    now = timezone.now()
    is_due = Q(finished_at=None) | Q(finished_at__lte=now - PASS_INTERVAL)
    is_free = Q(lease_until=None) | has_passed("lease_until", LEASE)
    limits = Q(max_age_days__isnull=False) | Q(max_steps__isnull=False) | Q(max_bytes__isnull=False)
    drops = ~Q(train="all") | Q(raw_after_days__isnull=False) | limits
    due: QuerySet[RetentionPolicy] = RetentionPolicy.objects.filter(is_due, is_free, drops)
    return due.select_related("project")


def has_due_policies() -> bool:
    return find_due_policies().exists()


@transaction.atomic
def start_pass(policy: RetentionPolicy, by: User) -> None:
    """Makes the policy due at once, from the first step."""
    RetentionPolicy.objects.filter(pk=policy.pk).update(cursor=0, finished_at=None)
    record_audit_entry(by, "retention.apply", policy.project.slug, project=policy.project)


def apply_due_policies(max_seconds: float = MAX_SECONDS) -> int:
    """Applies a portion of each due policy, unless another worker does. Returns the number of dropped samples. A policy
    that fails does not stop those of other projects."""
    dropped = 0
    for policy in find_due_policies().order_by("finished_at", "pk"):
        try:
            dropped += apply_policy(policy, max_seconds)
        except Exception:
            log.exception("The retention policy of project %s failed; the next sweep tries again.", policy.project.slug)
    return dropped


def apply_policy(policy: RetentionPolicy, max_seconds: float | None = MAX_SECONDS) -> int:
    """Applies a portion of a policy, the complete pass if `max_seconds` is None. Returns the number of dropped samples.
    Drops nothing if another worker applies the policy."""
    now = timezone.now()
    rows = RetentionPolicy.objects.filter(pk=policy.pk)
    if not rows.filter(Q(lease_until=None) | has_passed("lease_until", LEASE)).update(lease_until=now + LEASE):
        return 0
    portion = Portion(policy, max_seconds)
    try:
        policy.refresh_from_db()
        if portion.run():
            rows.filter(updated_at=policy.updated_at).update(cursor=0, finished_at=timezone.now())
    finally:
        rows.update(lease_until=None)
        for run in Run.objects.filter(pk__in=portion.changed_runs):
            measure_run(run)
    return portion.dropped


class Portion:
    """The work of one call on one policy."""

    def __init__(self, policy: RetentionPolicy, max_seconds: float | None) -> None:
        self.policy, self.max_seconds = policy, float("inf") if max_seconds is None else max_seconds
        self.deadline: float | None = None
        self.dropped = self.done = self.failures = 0
        self.changed_runs: set[int] = set()

    def run(self) -> bool:
        """Returns whether the pass has ended."""
        return self.drop_samples() and self.drop_raw_bytes() and self.remove_unused_rows()

    def start_piece(self) -> bool:
        """Counts a piece of work and renews the lease. Returns False if the time of the portion is over.

        The first piece always starts, and the time begins with it: the limits of a project with many steps take as
        long as a portion.
        """
        self.done += 1
        if self.deadline is None:
            self.deadline = monotonic() + self.max_seconds
        if self.done > 1 and monotonic() >= self.deadline:
            return False
        RetentionPolicy.objects.filter(pk=self.policy.pk).update(lease_until=timezone.now() + LEASE)
        return True

    def drop_samples(self) -> bool:
        policy = self.policy
        if policy.keeps_all_samples:
            return True
        protection = load_protection(policy.project)
        sizes = load_step_sizes(policy.project) if policy.max_bytes else None
        limits = find_limits(policy, protection, sizes)
        steps = find_steps(policy.project).filter(split="train").order_by("pk")
        cursor = policy.cursor
        while rows := list(steps.filter(pk__gt=cursor)[:STEPS_PER_QUERY]):
            for step in rows:
                if not self.start_piece():
                    return False
                decision = decide_step(step, policy, protection, limits)
                if decision.drops:
                    try:
                        self.dropped += drop_step_samples(decision, policy, limits)
                        self.changed_runs.add(step.run_id)
                    except (StepChangedError, RolloutError) as error:
                        log.warning("Step %s keeps its samples for now: %s", step.pk, error or "it just changed")
                cursor = step.pk
                same = RetentionPolicy.objects.filter(pk=policy.pk, updated_at=policy.updated_at)
                if not same.update(cursor=cursor):
                    return False  # an owner changed the policy
        return True

    def drop_raw_bytes(self) -> bool:
        for dump in find_due_raw_dumps(self.policy).order_by("pk").iterator(chunk_size=STEPS_PER_QUERY):
            if has_keep_tag(dump.run):
                continue
            if not self.start_piece():
                return False
            try:
                if drop_raw_dump(dump):
                    self.changed_runs.add(dump.run_id)
            except RolloutError as error:
                log.warning("The raw bytes of dump %s are kept for now: %s", dump.pk, error)
                self.failures += 1
                if self.failures < MAX_FAILURES:  # the next portion begins with this dump again
                    self.done = 0
        return True

    def remove_unused_rows(self) -> bool:
        for segment in find_body_files_with_unused_rows(self.policy.project_id):
            if not self.start_piece():
                return False
            remove_unused_rows(segment)
            self.changed_runs.add(segment.run_id)
        return True
