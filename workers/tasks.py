"""The Celery tasks. Each takes an id and calls one function.

A message may be lost or sent twice. The rows of the database say what is due.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task
from celery.signals import worker_ready
from django.db import OperationalError

from rollouts.errors import RolloutError
from rollouts.indexing import correctness, indexer
from rollouts.maintenance import compaction
from rollouts.maintenance import sweep as maintenance
from rollouts.metrics import series
from rollouts.pins import artifact_check
from workers import dispatch

log = logging.getLogger(__name__)


@shared_task
def index_dump(dump_id: int) -> None:
    """Indexes one dump. A failure is written to its row. If it may pass, the sweep tries again later."""
    try:
        indexer.index(dump_id)
    except RolloutError as error:
        log.warning("Dump %s was not indexed: %s", dump_id, error)


@shared_task
def check_artifact(artifact_id: int) -> None:
    """Checks that a trainer may be given an artifact. If the bytes cannot be read, the sweep sends it again."""
    try:
        for dump_id in artifact_check.check(artifact_id):
            dispatch.send_dump(dump_id)
    except RolloutError as error:
        log.warning("Artifact %s was not checked: %s", artifact_id, error)


@shared_task
def evaluate_correctness(project_id: int) -> None:
    """Evaluates a project's samples by its current rule for Correct."""
    correctness.judge_due(project_id)


@shared_task
def compact_series(run_id: int) -> None:
    """Compacts a run's metric rows into blocks."""
    series.fold(run_id)


@shared_task
def compact_bodies(run_id: int, split: str) -> None:
    """Joins a run's small Parquet files."""
    compaction.fold(run_id, split)


@shared_task
def sweep() -> None:
    """Sends again what is overdue, compacts what is due, and removes what has expired."""
    maintenance.release_dead()
    maintenance.give_up()
    for dump_id in maintenance.overdue():
        dispatch.send_now("index_dump", dump_id)
    for artifact_id in maintenance.artifacts_due():
        dispatch.send_now("check_artifact", artifact_id)
    for project_id in correctness.due():
        dispatch.send_now("evaluate_correctness", project_id)
    for run_id in maintenance.series_due():
        dispatch.send_now("compact_series", run_id)
    for run_id, split in compaction.due():
        dispatch.send_now("compact_bodies", run_id, split)
    maintenance.expire_arrivals()
    maintenance.empty_bin()


@shared_task
def hourly_cleanup() -> None:
    """The slow part of maintenance, once an hour: it checks every file below bodies/ and blobs/."""
    compaction.sweep_orphans()
    maintenance.drop_unpinned()
    maintenance.drop_orphan_blobs()


@worker_ready.connect
def release_claims_on_start(**_: Any) -> None:
    """A worker that starts releases the claims of killed workers on this host, before the first sweep."""
    try:
        maintenance.release_dead()
        for dump_id in maintenance.waiting():
            dispatch.send_now("index_dump", dump_id)
    except OperationalError as error:
        log.warning("The database does not answer yet (%s); the sweep will look again.", error)
