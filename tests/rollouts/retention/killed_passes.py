"""Applies a policy in child processes that are killed at random moments, and checks the data after each.

`python -m tests.rollouts.retention.killed_passes KILLS`, with ROLLOUTDECK_DATA set to an empty folder. Prints how often
it killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import django

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()

from django.contrib.auth.models import User
from django.db import connections

from rollouts.backup import apply_migrations
from rollouts.maintenance import compact_body_files
from rollouts.models import DuplicateSource, RetentionPolicy, Run, Sample, Segment
from rollouts.retention import apply_policy, start_pass, update_policy
from rollouts.samples import load_bodies
from tests.rollouts.retention.test_drop import age_steps, write_step
from tests.support import builders
from tests.support.stored import body_path, raw_path

STEPS = 24


def create_run_and_policy(slug: str = "kill") -> tuple[Run, RetentionPolicy]:
    apply_migrations()
    project = builders.project(slug)
    owner = User.objects.get_or_create(username="olga")[0]
    run = builders.run(project)
    for step in range(1, STEPS + 1):
        write_step(run, step)
    compact_body_files(run.pk, "train")
    age_steps(run)
    policy = update_policy(project, owner, {"train": "sample", "groups": 2, "raw_after_days": 0})
    start_pass(policy, owner)  # a saved policy waits an hour for its first pass
    policy.refresh_from_db()
    return run, policy


def kill_pass(policy: RetentionPolicy, seconds: float) -> bool:
    """Starts a pass in a child and kills it after some time. Returns whether the child ended before that."""
    connections.close_all()
    child = os.fork()
    if child == 0:
        try:
            apply_policy(policy, None)
        finally:
            os._exit(0)
    time.sleep(seconds)
    ended, _ = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    RetentionPolicy.objects.update(lease_until=None)  # as if its two minutes were over
    return bool(ended)


def check_data(run: Run) -> None:
    """Every row has its files, and every sample its own text."""
    assert all(body_path(segment.path).exists() for segment in Segment.objects.all())
    for dump in run.dumps.filter(raw_dropped_at=None):
        assert raw_path(run.project_id, dump.sha256).exists()
    rows = list(Sample.objects.filter(step__run=run).select_related("step"))
    assert not DuplicateSource.objects.filter(dump__run=run).exists()
    bodies = load_bodies(rows)
    for row in rows:
        assert bodies[row.pk].score == row.score and bodies[row.pk].response.endswith(f"in {row.step.step}")
    for step in run.steps.all():
        assert step.samples == step.rows.count() + step.dropped == 32


def kill_passes(kills: int, chance: random.Random, slug: str = "kill") -> tuple[int, bool]:
    """Kills passes over a new run until they are through, at most `kills` times.

    Returns the number of kills, and whether a killed pass had dropped something.
    """
    run, policy = create_run_and_policy(slug)
    check_data(run)
    killed, longest, dropped = 0, 0.3, 0
    while killed < kills:
        killed += not kill_pass(policy, chance.uniform(0.05, longest))
        check_data(run)
        policy.refresh_from_db()
        if policy.finished_at:
            break
        before, dropped = dropped, run.steps.filter(dropped__gt=0).count()
        if dropped == before:  # a slow machine needs more time to get to its first step
            longest *= 1.5
    has_dropped = run.steps.filter(dropped__gt=0).exists()
    policy.refresh_from_db()
    apply_policy(policy, None)
    check_data(run)
    kept = {step.step: step.rows.count() for step in run.steps.all()}
    assert all(count < 32 for step, count in kept.items() if step != STEPS) and kept[STEPS] == 32
    assert not run.dumps.filter(raw_dropped_at=None).exists()
    return killed, has_dropped


if __name__ == "__main__":
    killed, has_dropped = kill_passes(int(sys.argv[1]), random.Random(7))
    assert has_dropped, "no killed pass had dropped something"
    print(killed)
