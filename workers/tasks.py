"""Thin tasks: take an id, call one verb. A task may be lost or doubled; the rows say what is due."""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import Task, shared_task
from celery.signals import worker_process_init, worker_ready
from django.db import OperationalError
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerDown

from rollouts.errors import RolloutError
from rollouts.indexing import correctness
from rollouts.indexing import indexer as index
from rollouts.maintenance import compaction as segments
from rollouts.maintenance import sweep as upkeep
from rollouts.metrics import series
from rollouts.models import Dump
from rollouts.pins import artifact_check

log = logging.getLogger(__name__)

PAUSE = 5.0  # seconds without publishing after the broker did not answer
quiet_until = 0.0


def hurry(task: Task[Any, Any], *args: Any) -> bool:
    """Sends a task now if the broker answers. If not, False and a pause: the sweep sends what is overdue."""
    global quiet_until
    if time.monotonic() < quiet_until:
        return False
    try:
        task.delay(*args)
    except (BrokerDown, OSError) as error:
        quiet_until = time.monotonic() + PAUSE
        log.warning("Redis does not answer (%s); what has arrived waits for the next sweep.", error)
        return False
    return True


def hurry_dump(dump_id: int) -> None:
    """Brings a worker to a dump that has just arrived; if that cannot be, the next sweep will."""
    if not hurry(index_dump, dump_id):
        Dump.objects.filter(pk=dump_id, state=Dump.State.RECEIVED).update(due_at=timezone.now())


@shared_task
def index_dump(dump_id: int) -> None:
    """Indexes one dump. A failure stands on its row, with the time at which the sweep tries again if it may pass."""
    try:
        index.index(dump_id)
    except RolloutError as error:
        log.warning("Dump %s was not indexed: %s", dump_id, error)


def hurry_artifact(artifact_id: int) -> None:
    """Brings a worker to an artifact whose bytes are all here; if that cannot be, the next sweep will."""
    hurry(check_artifact, artifact_id)


@shared_task
def check_artifact(artifact_id: int) -> None:
    """Checks that a trainer may be given an artifact. Where the bytes cannot be read, the sweep sends it again."""
    try:
        for dump_id in artifact_check.check(artifact_id):
            hurry_dump(dump_id)
    except RolloutError as error:
        log.warning("Artifact %s was not checked: %s", artifact_id, error)


def hurry_rule(project_id: int) -> None:
    """Brings a worker to a project whose rule for Correct has changed; if that cannot be, the next sweep will."""
    hurry(judge_samples, project_id)


@shared_task
def judge_samples(project_id: int) -> None:
    """Judges a project's samples by its present rule for Correct."""
    correctness.judge_due(project_id)


@shared_task
def fold_series(run_id: int) -> None:
    """Packs a run's loose metric rows into blocks."""
    series.fold(run_id)


@shared_task
def fold_segments(run_id: int, split: str) -> None:
    """Joins a run's small Parquet files."""
    segments.fold(run_id, split)


@shared_task
def sweep() -> None:
    """Heals: sends again what is overdue, folds what is due, expires what was left behind."""
    upkeep.release_dead()
    upkeep.give_up()
    for dump_id in upkeep.overdue():
        hurry(index_dump, dump_id)
    for artifact_id in upkeep.artifacts_due():
        hurry(check_artifact, artifact_id)
    for project_id in correctness.due():
        hurry(judge_samples, project_id)
    for run_id in upkeep.series_due():
        hurry(fold_series, run_id)
    for run_id, split in segments.due():
        hurry(fold_segments, run_id, split)
    upkeep.expire_arrivals()
    upkeep.empty_bin()


@shared_task
def tidy() -> None:
    """The slow part of upkeep, once an hour: looks at every file below bodies/ and blobs/."""
    segments.sweep_orphans()
    upkeep.drop_unpinned()
    upkeep.drop_orphan_blobs()


@worker_process_init.connect
def warm(**_: Any) -> None:
    """Loads what indexing needs in each child, so that the first dump does not wait a second for imports."""
    from rollouts.indexing import indexer as index  # noqa: F401
    from rollouts.maintenance import compaction as segments  # noqa: F401
    from rollouts.metrics import series  # noqa: F401


@worker_ready.connect
def heal(**_: Any) -> None:
    """A worker that starts takes back what a killed one on this host had claimed, before the first sweep."""
    try:
        upkeep.release_dead()
        for dump_id in upkeep.waiting():
            hurry(index_dump, dump_id)
    except OperationalError as error:
        log.warning("The database does not answer yet (%s); the sweep will look again.", error)
